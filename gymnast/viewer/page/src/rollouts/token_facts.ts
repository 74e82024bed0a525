// What is known of each token of a context: its text, and what part it has in the conversation.

import type { Context } from "../data/wire";

export type Kind = "prompt" | "sampled" | "unread" | "appended";

export const KINDS: Record<Kind, string> = {
  prompt: "prompt",
  sampled: "sampled by the policy",
  unread: "sampled, but not trained on",
  appended: "appended by the environment",
};

/** The text of each token; its id in brackets where no text was saved. */
export function texts(context: Context): string[] {
  const { text, token_ends: ends } = context;
  if (text === null || ends === null) return context.ids.map((id) => `[${id}]`);
  const bytes = new TextEncoder().encode(text);
  const decoder = new TextDecoder();
  return ends.map((end, i) => decoder.decode(bytes.subarray(i === 0 ? 0 : ends[i - 1], end)));
}

export function kinds(context: Context): Kind[] {
  const found = context.ids.map<Kind>((_, i) =>
    i < context.prompt_length ? "prompt" : context.action_mask[i] ? "sampled" : "appended",
  );
  for (const [start, end] of context.turns) {
    for (let i = start; i < end; i++) if (found[i] !== "sampled") found[i] = "unread";
  }
  return found;
}

/** The turn that each token was sampled in; -1 for the others. */
export function turnsOf(context: Context): number[] {
  const found = new Array<number>(context.ids.length).fill(-1);
  context.turns.forEach(([start, end], turn) => found.fill(turn, start, end));
  return found;
}

export function versionOf(context: Context, i: number): number | null {
  const span = context.versions?.find(([start, end]) => start <= i && i < end);
  return span === undefined ? null : span[2];
}

/** How strongly a token is coloured in a shade, from -1 to 1; 0 where there is nothing to say. */
export function shade(context: Context, by: string, i: number, largest: number): number {
  if (!context.action_mask[i]) return 0;
  if (by === "logprob") return Math.max(-1, (context.logprobs[i] ?? 0) / 6);
  if (by === "advantage") return largest === 0 ? 0 : (context.advantages?.[i] ?? 0) / largest;
  return 0;
}
