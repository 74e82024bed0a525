// From where to where the axes of a plot reach, and where they have marks.

export type Range = [number, number];

const NOISE = 1e-6; // values that lie closer together are one value, and rounding
const LEAST = 1e-3; // what is drawn above and below one value, at least
const MARGIN = 0.1; // of what the values span, above and below

/** Whole numbers: a step has no half. */
export const WHOLE = Array.from({ length: 10 }, (_, n) => [1, 2, 5].map((k) => k * 10 ** n)).flat();

/** What the values of a plot are. */
export interface Kind {
  /** They lie between 0 and 1. */
  share: boolean;
  /** Tiny values count, as learning rates do: they are no noise. */
  fine: boolean;
  /** They are counts, so that an axis has no marks between whole numbers. */
  whole: boolean;
}

/** Of the values of a plot. */
export function valueRange(low: number | null, high: number | null, { share, fine }: Kind): Range {
  if (low === null || high === null) return [0, 1];
  const flat = low === high || (high - low < NOISE && !fine);
  if (flat && share) return [0, 1];
  const [bottom, top] = flat ? around((low + high) / 2, fine) : [low, high];
  const margin = (top - bottom) * MARGIN;
  const range: Range = [bottom < 0 ? bottom - margin : Math.max(0, bottom - margin), top + margin];
  return share ? [Math.max(0, range[0]), Math.min(1, range[1])] : range;
}

/** About one value: enough room that it is seen to be flat. */
function around(value: number, fine: boolean): Range {
  const size = Math.abs(value);
  if (size < NOISE && (!fine || size === 0)) return value < 0 ? [-1, 1] : [0, 1];
  const half = Math.max(size / 10, fine ? 0 : LEAST);
  return [value < 0 ? value - half : Math.max(0, value - half), value + half];
}

/** Of steps or minutes; a point alone stands in the middle. */
export function timeRange(low: number | null, high: number | null): Range {
  if (low === null || high === null) return [0, 1];
  return low < high ? [low, high] : [Math.max(0, low - 1), high + 1];
}
