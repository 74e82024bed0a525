// One plot: lines over steps or minutes, with the values under the pointer below it, or the last ones.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { marked, short } from "../data/numbers";
import { DASHES } from "../shell/colors";
import { type Kind, timeRange, valueRange, WHOLE } from "./scales";

export interface Line {
  label: string;
  /** What it means, in a sentence. */
  meaning: string | undefined;
  color: string;
  dash: readonly number[];
  points: boolean;
  x: readonly (number | null)[];
  y: readonly (number | null)[];
}

interface Props {
  title: string;
  kind: Kind;
  over: string;
  lines: readonly Line[];
  theme: string;
}

const HEIGHT = 190;
const MARKS = ["solid", "dashed", "dotted", "double"]; // of a line in the legend, as it is dashed
const together = uPlot.sync("runs");

export function Plot({ title, kind, over, lines, theme }: Props) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current!;
    const plot = new uPlot(optionsOf(element, kind, over, lines), columns(lines), element);
    explain(element, lines);
    const watched = new ResizeObserver(() => {
      if (element.clientWidth > 0) plot.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    watched.observe(element);
    return () => {
      watched.disconnect();
      plot.destroy();
    };
  }, [lines, over, theme]);
  const meanings = new Set(lines.map((line) => line.meaning));
  return (
    <figure class="plot">
      <figcaption>
        {title}
        {meanings.size === 1 && <span class="meaning quiet">{lines[0]!.meaning}</span>}
      </figcaption>
      <div ref={place} role="img" aria-label={`${title}: ${spoken(lines)}`} />
    </figure>
  );
}

function optionsOf(element: Element, kind: Kind, over: string, lines: readonly Line[]): uPlot.Options {
  const style = getComputedStyle(element);
  const [ink, rule] = [style.getPropertyValue("--faint"), style.getPropertyValue("--rule")];
  const axis: uPlot.Axis = {
    stroke: ink,
    font: "11px system-ui",
    grid: { stroke: rule, width: 1 },
    ticks: { stroke: rule, width: 1 },
  };
  return {
    width: Math.max(element.clientWidth, 200),
    height: HEIGHT,
    cursor: { sync: { key: together.key }, points: { size: 6 } },
    legend: { markers: { dash: (_, n) => MARKS[DASHES.indexOf(lines[n - 1]?.dash ?? [])] ?? "solid" } },
    scales: {
      x: { time: false, range: (_, low, high) => timeRange(low, high) },
      y: { range: (_, low, high) => valueRange(low, high, kind) },
    },
    axes: [
      { ...axis, size: 28, gap: 3, ...(over === "step" ? { incrs: WHOLE } : {}) },
      {
        ...axis,
        size: (_, shown) => 16 + 6.5 * Math.max(4, ...(shown ?? []).map((mark) => mark.length)),
        gap: 3,
        ...(kind.whole ? { incrs: WHOLE } : {}),
        values: (_, marks, _axis, _space, apart) => marks.map((mark) => marked(mark, apart)),
      },
    ],
    series: [{ label: over, value: pointedOrLast }, ...lines.map(seriesOf)],
  };
}

function seriesOf(line: Line): uPlot.Series {
  return {
    label: line.label,
    stroke: line.color,
    width: 1.5,
    dash: [...line.dash],
    points: { show: line.points || line.y.length < 40, size: line.points ? 7 : 4 },
    spanGaps: true,
    value: pointedOrLast,
  };
}

/** The value under the pointer; the last one there is while the pointer is elsewhere. */
function pointedOrLast(plot: uPlot, value: number | null, series: number, at: number | null): string {
  if (at !== null) return short(value);
  return short([...plot.data[series]!].findLast((each) => each !== null && each !== undefined));
}

/** Says what each line means where the pointer rests on its name. */
function explain(element: Element, lines: readonly Line[]): void {
  element.querySelectorAll<HTMLElement>(".u-series th").forEach((name, n) => {
    name.title = lines[n - 1]?.meaning ?? ""; // the first is the axis
  });
}

/**
 * All lines over the same, sorted x, with null where a line has no point. An x at which a line has
 * several points, as evaluations before and after a warm-up, is there as often.
 */
export function columns(lines: readonly Line[]): uPlot.AlignedData {
  const most = new Map<number, number>();
  const nth = lines.map((line) => {
    const seen = new Map<number, number>();
    return line.x.map((x) => {
      if (x === null) return 0;
      const before = seen.get(x) ?? 0;
      seen.set(x, before + 1);
      most.set(x, Math.max(most.get(x) ?? 0, before + 1));
      return before;
    });
  });
  const x: number[] = [];
  const first = new Map<number, number>();
  for (const value of [...most.keys()].sort((one, other) => one - other)) {
    first.set(value, x.length);
    for (let n = 0; n < most.get(value)!; n++) x.push(value);
  }
  const drawn = lines.map((line, of) => {
    const y = new Array<number | null>(x.length).fill(null);
    line.x.forEach((value, n) => {
      if (value !== null) y[first.get(value)! + nth[of]![n]!] = line.y[n] ?? null;
    });
    return y;
  });
  return [x, ...drawn];
}

function spoken(lines: readonly Line[]): string {
  return lines
    .map((line) => {
      const known = line.y.filter((value) => value !== null);
      return `${line.label} from ${short(known.at(0))} to ${short(known.at(-1))}`;
    })
    .join("; ");
}
