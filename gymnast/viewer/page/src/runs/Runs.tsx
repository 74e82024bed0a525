// The runs side by side: what each is, and its metrics over time.

import { useMemo } from "preact/hooks";
import { useLoaded } from "../data/loaded";
import { source } from "../data/source";
import type { RunHead } from "../data/wire";
import { address, go, type Route } from "../route";
import { Advice } from "../shell/Advice";
import { color, DASHES } from "../shell/colors";
import { meaning } from "./meanings";
import { drawn, PANELS, type Panel } from "./panels";
import { type Line, Plot } from "./Plot";
import { type All, Table } from "./Table";
import "./runs.css";

interface Props {
  runs: readonly RunHead[];
  route: Route;
  theme: string;
}

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
        <Advice key={run.name} run={run} named={runs.length > 1} />
      ))}
      <div class="bar" role="group" aria-label="Over what the plots are drawn">
        {(["step", "minutes"] as const).map((each) => (
          <button aria-pressed={over === each} onClick={() => change({ over: each })}>
            over {each === "step" ? "steps" : "minutes"}
          </button>
        ))}
        <span class="quiet">Drag to zoom, double-click to see all.</span>
      </div>
      <Plots
        {...{ shown, runs, over, theme }}
        metrics={loaded.value}
        chosen={route.query.metric ?? ""}
        choose={(metric) => change({ metric })}
      />
    </div>
  );
}

interface PlotsProps {
  shown: readonly RunHead[];
  runs: readonly RunHead[];
  metrics: All;
  over: "step" | "minutes";
  theme: string;
}

interface ChoiceProps {
  /** The metric that is plotted beside those that everybody sees. */
  chosen: string;
  choose: (metric: string) => void;
}

function Plots({ shown, runs, metrics, over, theme, chosen, choose }: PlotsProps & ChoiceProps) {
  const names = useMemo(() => namesOf(metrics), [metrics]);
  const panels = useMemo<readonly Panel[]>(
    () => (names.includes(chosen) ? [{ title: chosen, lines: [chosen] }, ...PANELS] : PANELS),
    [names, chosen],
  );
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
  // Only a rate of learning is so small that what is noise elsewhere is its value.
  const fine = panel.lines.every((name) => name.includes("learning_rate"));
  const kind = { share: panel.share ?? false, whole: panel.whole ?? false, fine };
  return <Plot title={panel.title} {...{ kind, over, lines, theme }} />;
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
      meaning: meaning(name),
      dash: DASHES[evaluated ? 1 : nth % DASHES.length]!,
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
