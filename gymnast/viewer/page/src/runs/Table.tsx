// What each run is, and how far it has come; at narrow widths each is a card.

import { useMemo } from "preact/hooks";
import { short } from "../data/numbers";
import type { Metrics, RunHead, Series } from "../data/wire";
import { address } from "../route";
import { color } from "../shell/colors";

/** The metrics of each run, by its name. */
export type All = Record<string, Metrics>;

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

export function Table({ runs, metrics, hidden, toggle }: TableProps) {
  const differing = useMemo(() => keysOf(runs), [runs]);
  const columns = [
    ...["Plotted", "Run", "Model", "Environment", "Algorithm", "Steps", "Reward of steps"],
    ...["Held out", ...(differing.length > 0 ? ["Differs in"] : []), "Look at"],
  ];
  return (
    <div class="wide" tabIndex={0} role="region" aria-label="Runs">
      <table class="stacks">
        <thead>
          <tr>
            {columns.map((name) => (
              <th scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {runs.map((run, n) => (
            <Row
              {...{ run, n, differing }}
              metrics={metrics[run.name]!}
              plotted={!hidden.has(run.name)}
              toggle={() => toggle(run.name)}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface RowProps {
  run: RunHead;
  n: number;
  differing: readonly string[];
  metrics: Metrics;
  plotted: boolean;
  toggle: () => void;
}

function Row({ run, n, differing, metrics, plotted, toggle }: RowProps) {
  const { steps, evaluations } = metrics;
  const done = steps.step.at(-1) ?? 0;
  return (
    <tr>
      <td data-label="Plotted">
        <input type="checkbox" aria-label={`Plot ${run.name}`} checked={plotted} onChange={toggle} />
      </td>
      <th scope="row">
        <span class="swatch" style={{ background: color(n) }} />
        {run.name}
      </th>
      <td data-label="Model">{run.model ?? "–"}</td>
      <td data-label="Environment">{run.environment ?? "–"}</td>
      <td data-label="Algorithm">{run.algorithm ?? "–"}</td>
      <td data-label="Steps" class="number">
        {run.steps === null ? done : `${done} of ${run.steps}`}
      </td>
      <td data-label="Reward of steps" class="number">
        {ends(steps, "reward/mean")}
      </td>
      <td data-label="Held out" class="number">
        {ends(evaluations, "eval/reward/mean")}
      </td>
      {differing.length > 0 && (
        <td data-label="Differs in">
          <Settings run={run} keys={differing} />
        </td>
      )}
      <td data-label="Look at">
        <a href={address("rollouts", { run: run.name })}>rollouts</a>{" "}
        <a href={address("why", { run: run.name })}>why 0?</a>
      </td>
    </tr>
  );
}

function Settings({ run, keys }: { run: RunHead; keys: readonly string[] }) {
  return (
    <>
      {keys.slice(0, MOST_KEYS).map((key) => (
        <code class="setting">
          {key}: {run.settings[key] ?? "not set"}
        </code>
      ))}
      {keys.length > MOST_KEYS && `and ${keys.length - MOST_KEYS} more`}
    </>
  );
}

function ends(series: Series, name: string): string {
  const known = (series.columns[name] ?? []).filter((value) => value !== null);
  if (known.length === 0) return "–";
  return known.length === 1
    ? short(known[0])
    : `${short(known[0])} → ${short(known[known.length - 1])}`;
}
