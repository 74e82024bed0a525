// One plot: lines over steps or minutes, with the values under the pointer below it.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { short } from "../data/numbers";

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
      scales: { x: { time: false } },
      axes: [
        { ...axis, size: 28, gap: 3 },
        { ...axis, size: 50, gap: 3, values: (_, marks) => marks.map(short) },
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

/** All lines over the same, sorted x, with null where a line has no point. */
export function columns(lines: readonly Line[]): uPlot.AlignedData {
  const all = new Set<number>();
  for (const line of lines) for (const x of line.x) if (x !== null) all.add(x);
  const x = [...all].sort((one, other) => one - other);
  const place = new Map(x.map((value, n) => [value, n]));
  const drawn = lines.map((line) => {
    const y = new Array<number | null>(x.length).fill(null);
    line.x.forEach((value, n) => {
      if (value !== null) y[place.get(value)!] = line.y[n] ?? null;
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
