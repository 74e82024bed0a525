// Numbers as people read them.

export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e5) return String(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  if (size >= 1e-3) return String(Number(value.toPrecision(3)));
  return value === 0 ? "0" : value.toExponential(1);
}

/** A mark of an axis, with as many digits as tell it from the next one. */
export function marked(value: number, apart: number): string {
  const size = Math.abs(value);
  if (size >= 1e4 || (value !== 0 && size < 1e-3)) return short(value);
  const whole = (digits: number) => Math.abs(apart * 10 ** digits - Math.round(apart * 10 ** digits)) < 1e-6;
  return value.toFixed([0, 1, 2, 3, 4, 5].find(whole) ?? 6);
}

export function percent(share: number): string {
  return `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)}%`;
}

export function count(n: number, noun: string): string {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}
