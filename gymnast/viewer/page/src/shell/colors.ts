// The colours of runs and lines: apart from one another for people who see red and green alike
// (after Okabe and Ito), and readable on both backgrounds.

const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7a5cc6"];

// The gaps are so wide that a line below is seen in them.
export const DASHES: readonly (readonly number[])[] = [[], [8, 7], [2, 4], [12, 4, 2, 4]];

export function color(n: number): string {
  return COLORS[n % COLORS.length]!;
}
