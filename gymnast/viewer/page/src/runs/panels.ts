// What is plotted of a run: one entry of this table is one plot.

export interface Panel {
  title: string;
  /** Names of metrics, or what they begin with, where they end in "*". */
  lines: readonly string[];
  /** Names that are found in evaluations, and drawn with a point for each. */
  evaluations?: readonly string[];
  /** Whether the values are shares, which are not less than 0 or more than 1. */
  share?: boolean;
  /** Whether they are counts. */
  whole?: boolean;
}

export const PANELS: readonly Panel[] = [
  { title: "Reward", lines: ["reward/mean"], evaluations: ["eval/reward/mean"] },
  { title: "Loss", lines: ["loss"] },
  { title: "Entropy (nats a token)", lines: ["entropy"] },
  { title: "KL to the reference", lines: ["kl"] },
  { title: "Engine mismatch (log-probability)", lines: ["engine/logprob_difference"] },
  { title: "Gradient norm", lines: ["grad_norm"] },
  { title: "Turns an episode", lines: ["episodes/turns"] },
  { title: "Stop reasons (share)", lines: ["episodes/stop/*"], share: true },
  { title: "Groups with one reward (share)", lines: ["advantage/groups_alike"], share: true },
  { title: "Tool calls", lines: ["tools/calls"], whole: true },
  { title: "Failed calls, by kind", lines: ["tools/errors/*"], whole: true },
  { title: "Tokens a second", lines: ["tokens/per_s"] },
  // The whole first, so that a part which is almost as long is drawn over it, in dashes.
  { title: "Seconds of a step", lines: ["time/step_s", "time/rollout_s", "time/train_s"] },
  {
    title: "Seconds of an episode",
    lines: ["time/model_s", "time/waiting_s", "time/environment_s"],
  },
];

/** The names that a panel draws, of those that there are. */
export function drawn(lines: readonly string[], names: readonly string[]): string[] {
  return lines.flatMap((line) =>
    line.endsWith("*")
      ? names.filter((name) => name.startsWith(line.slice(0, -1))).sort()
      : names.filter((name) => name === line),
  );
}
