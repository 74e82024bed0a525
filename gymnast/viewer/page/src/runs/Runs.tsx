// The runs side by side: what each is, and its metrics over time.

import { useMemo, useState } from "preact/hooks";
import { useLoaded } from "../data/loaded";
import { short } from "../data/numbers";
import { source } from "../data/source";
import type { Metrics, RunHead, Series } from "../data/wire";
import { address, go, type Route } from "../route";
import { color, DASHES } from "../shell/colors";
import { drawn, PANELS, type Panel } from "./panels";
import { type Line, Plot } from "./Plot";

interface Props {
  runs: readonly RunHead[];
  route: Route;
  theme: string;
}

type All = Record<string, Metrics>;

export function Runs({ runs, route, theme }: Props) {
  const hidden = new Set((route.query.hide ?? "").split("|").filter(Boolean));
  const over = route.query.over === "minutes" ? "minutes" : "step";
  const stamps = runs.map((run) => run.stamp).join();
  const loaded = useLoaded<All>(
    async () =>
      Object.fromEntries(
        await Promise.all(runs.map(async (run) => [run.name, await source.metrics(run.name)])),
      ),
    runs.map((run) => run.name).join(),
    [stamps],
  );
  const change = (changed: Record<string, string>) =>
    go(address("runs", { ...route.query, ...changed }), true);
  const toggle = (name: string) => {
    hidden.has(name) ? hidden.delete(name) : hidden.add(name);
    change({ hide: [...hidden].join("|") });
  };
  if (loaded.error !== null) return <p class="error">{loaded.error}</p>;
  if (loaded.value === null) return <p class="quiet">Reading metrics …</p>;
  const shown = runs.filter((run) => !hidden.has(run.name));
  return (
    <div class="runs">
      <h1>Runs</h1>
      <Table runs={runs} metrics={loaded.value} hidden={hidden} toggle={toggle} />
      {runs.map((run) => (
        <AdviceOf key={run.name} run={run} several={runs.length > 1} />
      ))}
      <div class="bar" role="group" aria-label="Over what the plots are drawn">
        {(["step", "minutes"] as const).map((each) => (
          <button aria-pressed={over === each} onClick={() => change({ over: each })}>
            over {each === "step" ? "steps" : "minutes"}
          </button>
        ))}
        <span class="quiet">Drag to zoom, double-click to see all.</span>
      </div>
      <Plots {...{ shown, runs, over, theme }} metrics={loaded.value} />
    </div>
  );
}

interface TableProps {
  runs: readonly RunHead[];
  metrics: All;
  hidden: ReadonlySet<string>;
  toggle: (name: string) => void;
}

const MOST_KEYS = 6;
const SHOWN_ALREADY = ["model.name", "environment.id", "algorithm.name", "trainer.steps"];

/** The keys of the configs in which runs differ, beside those that have a column of their own. */
function keysOf(runs: readonly RunHead[]): string[] {
  const keys = new Set(runs.flatMap((run) => Object.keys(run.settings)));
  for (const key of SHOWN_ALREADY) keys.delete(key);
  return [...keys].filter((key) => new Set(runs.map((run) => run.settings[key])).size > 1).sort();
}

function Table({ runs, metrics, hidden, toggle }: TableProps) {
  const differing = useMemo(() => keysOf(runs), [runs]);
  return (
    <div class="wide" tabIndex={0} role="region" aria-label="Runs">
      <table>
        <thead>
          <tr>
            <th scope="col">Plotted</th>
            <th scope="col">Run</th>
            <th scope="col">Model</th>
            <th scope="col">Environment</th>
            <th scope="col">Algorithm</th>
            <th scope="col">Steps</th>
            <th scope="col">Reward of steps</th>
            <th scope="col">Held out</th>
            {differing.length > 0 && <th scope="col">Differs in</th>}
            <th scope="col">Look at</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run, n) => {
            const { steps, evaluations } = metrics[run.name]!;
            return (
              <tr>
                <td>
                  <input
                    type="checkbox"
                    aria-label={`Plot ${run.name}`}
                    checked={!hidden.has(run.name)}
                    onChange={() => toggle(run.name)}
                  />
                </td>
                <th scope="row">
                  <span class="swatch" style={{ background: color(n) }} />
                  {run.name}
                </th>
                <td>{run.model ?? "–"}</td>
                <td>{run.environment ?? "–"}</td>
                <td>{run.algorithm ?? "–"}</td>
                <td class="number">
                  {steps.step.at(-1) ?? 0}
                  {run.steps === null ? "" : ` of ${run.steps}`}
                </td>
                <td class="number">{ends(steps, "reward/mean")}</td>
                <td class="number">{ends(evaluations, "eval/reward/mean")}</td>
                {differing.length > 0 && (
                  <td>
                    {differing.slice(0, MOST_KEYS).map((key) => (
                      <code class="setting">
                        {key}: {run.settings[key] ?? "not set"}
                      </code>
                    ))}
                    {differing.length > MOST_KEYS && `and ${differing.length - MOST_KEYS} more`}
                  </td>
                )}
                <td>
                  <a href={address("rollouts", { run: run.name })}>rollouts</a>{" "}
                  <a href={address("why", { run: run.name })}>why 0?</a>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function ends(series: Series, name: string): string {
  const known = (series.columns[name] ?? []).filter((value) => value !== null);
  if (known.length === 0) return "–";
  return known.length === 1
    ? short(known[0])
    : `${short(known[0])} → ${short(known[known.length - 1])}`;
}

function AdviceOf({ run, several }: { run: RunHead; several: boolean }) {
  const last = run.advice.at(-1);
  if (last === undefined) return null;
  return (
    <p class="advice">
      {several ? `${run.name}, ` : ""}step {last.step}, {last.cause}: {last.text}
    </p>
  );
}

interface PlotsProps {
  shown: readonly RunHead[];
  runs: readonly RunHead[];
  metrics: All;
  over: "step" | "minutes";
  theme: string;
}

function Plots({ shown, runs, metrics, over, theme }: PlotsProps) {
  const [chosen, choose] = useState("");
  const names = useMemo(() => namesOf(metrics), [metrics]);
  const panels: Panel[] = [...PANELS];
  if (names.includes(chosen)) panels.unshift({ title: chosen, lines: [chosen] });
  return (
    <>
      <label class="field">
        Any metric{" "}
        <input
          list="metrics"
          value={chosen}
          placeholder="time/tool/search_s"
          onInput={(event) => choose(event.currentTarget.value)}
        />
        <datalist id="metrics">
          {names.map((name) => (
            <option value={name} />
          ))}
        </datalist>
      </label>
      <div class="plots">
        {panels.map((panel) => (
          <PanelPlot key={panel.title} {...{ panel, shown, runs, metrics, over, theme, names }} />
        ))}
      </div>
    </>
  );
}

function PanelPlot(props: PlotsProps & { panel: Panel; names: readonly string[] }) {
  const { panel, shown, runs, metrics, over, theme, names } = props;
  const lines = useMemo(
    () => linesOf(panel, shown, runs, metrics, over, names),
    [panel, shown.map((run) => run.name).join(), metrics, over],
  );
  if (lines.length === 0) return null;
  return <Plot title={panel.title} over={over} lines={lines} theme={theme} />;
}

function linesOf(
  panel: Panel,
  shown: readonly RunHead[],
  runs: readonly RunHead[],
  metrics: All,
  over: "step" | "minutes",
  names: readonly string[],
): Line[] {
  const lines: Line[] = [];
  // A count that a step has not is 0: nothing was counted.
  const counted = panel.lines.some((line) => line.endsWith("*"));
  const add = (run: RunHead, name: string, nth: number, several: boolean) => {
    const evaluated = name.startsWith("eval/");
    const of = metrics[run.name]!;
    const series = evaluated ? of.evaluations : of.steps;
    const y = series.columns[name];
    if (y === undefined || y.every((value) => value === null)) return;
    lines.push({
      label: [shown.length > 1 ? run.name : "", evaluated ? "held out" : several ? name : ""]
        .filter(Boolean)
        .join(" ") || name,
      color: shown.length > 1 ? color(runs.indexOf(run)) : color(nth),
      dash: DASHES[shown.length > 1 && !evaluated ? nth % DASHES.length : 0]!,
      points: evaluated,
      x: over === "minutes" ? series.minutes : series.step,
      y: counted ? y.map((value) => value ?? 0) : y,
    });
  };
  for (const run of shown) {
    const found = drawn(panel.lines, names);
    found.forEach((name, nth) => add(run, name, nth, found.length > 1));
    drawn(panel.evaluations ?? [], names).forEach((name, nth) => add(run, name, nth + 1, false));
  }
  return lines;
}

function namesOf(metrics: All): string[] {
  const names = new Set<string>();
  for (const { steps, evaluations } of Object.values(metrics)) {
    for (const name of Object.keys(steps.columns)) names.add(name);
    for (const name of Object.keys(evaluations.columns)) names.add(name);
  }
  return [...names].sort();
}
