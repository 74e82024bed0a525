// One plot: lines over steps or minutes, with the values under the pointer below it.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { marked, short } from "../data/numbers";
import { DASHES } from "../shell/colors";

export interface Line {
  label: string;
  color: string;
  dash: readonly number[];
  points: boolean;
  x: readonly (number | null)[];
  y: readonly (number | null)[];
}

interface Props {
  title: string;
  over: string;
  lines: readonly Line[];
  theme: string;
}

const HEIGHT = 190;
const MARKS = ["solid", "dashed", "dotted", "double"]; // of a line in the legend, as it is dashed
const together = uPlot.sync("runs");

export function Plot({ title, over, lines, theme }: Props) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current!;
    const style = getComputedStyle(element);
    const [ink, rule] = [style.getPropertyValue("--faint"), style.getPropertyValue("--rule")];
    const axis: uPlot.Axis = {
      stroke: ink,
      font: "11px system-ui",
      grid: { stroke: rule, width: 1 },
      ticks: { stroke: rule, width: 1 },
    };
    const options: uPlot.Options = {
      width: Math.max(element.clientWidth, 200),
      height: HEIGHT,
      cursor: { sync: { key: together.key }, points: { size: 6 } },
      legend: { markers: { dash: (_, n) => MARKS[DASHES.indexOf(lines[n - 1]?.dash ?? [])] ?? "solid" } },
      scales: { x: { time: false }, y: { range: (_, low, high) => room(low, high) } },
      axes: [
        { ...axis, size: 28, gap: 3 },
        {
          ...axis,
          size: (_, shown) => 16 + 6.5 * Math.max(4, ...(shown ?? []).map((mark) => mark.length)),
          gap: 3,
          values: (_, marks, _axis, _space, apart) => marks.map((mark) => marked(mark, apart)),
        },
      ],
      series: [
        { label: over, value: (_, value) => short(value) },
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.color,
          width: line.points ? 0 : 1.5,
          dash: [...line.dash],
          points: { show: line.points || line.y.length < 40, size: line.points ? 7 : 4 },
          spanGaps: true,
          value: (_: uPlot, value: number | null) => short(value),
        })),
      ],
    };
    const plot = new uPlot(options, columns(lines), element);
    const watched = new ResizeObserver(() => {
      if (element.clientWidth > 0) plot.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    watched.observe(element);
    return () => {
      watched.disconnect();
      plot.destroy();
    };
  }, [lines, over, theme]);
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title}: ${spoken(lines)}`} />
    </figure>
  );
}

/** From where to where the values reach, with some room; around the value where there is one alone. */
function room(low: number | null, high: number | null): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  if (low < high) return uPlot.rangeNum(low, high, 0.1, true);
  const around = Math.abs(low) / 10 || 1;
  return [low >= 0 ? Math.max(0, low - around) : low - around, low + around];
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
