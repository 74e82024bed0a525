// What the server sends, and what a single file holds. `gymnast/viewer/wire.py` writes these.

/** What there is to see. `stamp` changes when a run has written something. */
export interface Overview {
  live: boolean;
  partial: string | null;
  runs: RunHead[];
}

export interface RunHead {
  name: string;
  folder: string;
  stamp: string;
  model: string | null;
  environment: string | null;
  algorithm: string | null;
  steps: number | null;
  /** The dotted keys of its config, with their values as JSON. */
  settings: Record<string, string>;
  advice: Advice[];
}

export interface Advice {
  step: number;
  cause: string;
  text: string;
}

/** Lines of metrics as columns: `columns[name][i]` is of the line at `step[i]`. */
export interface Series {
  step: number[];
  minutes: (number | null)[];
  columns: Record<string, (number | null)[]>;
}

export interface Metrics {
  steps: Series;
  evaluations: Series;
  warmup: Series;
}

export interface FileHead {
  name: string;
  step: number;
  evaluation: boolean;
}

/** Every episode of a run in a few numbers: column `i` is of episode `i`. */
export interface Index {
  files: FileHead[];
  rows: RowHead[];
  file: number[];
  group: number[];
  member: number[];
  row: number[];
  reward: (number | null)[];
  stop: string[];
  turns: number[];
  tokens: number[];
  errors: Record<string, number>[];
  tools: string[][];
  environment: (string | null)[];
  alike: boolean[];
}

export interface RowHead {
  snippet: string;
  tags: Record<string, string>;
}

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Call {
  id?: string;
  function: { name: string; arguments: Json };
  error?: string;
}

export interface Message {
  role: string;
  content?: Json;
  name?: string;
  reasoning_content?: string;
  tool_calls?: Call[];
  tool_call_id?: string;
  /** What the policy said word for word, where it could not be read whole. */
  raw?: string;
}

export interface Context {
  prompt_length: number;
  ids: number[];
  action_mask: number[];
  logprobs: (number | null)[];
  advantages: (number | null)[] | null;
  token_rewards: (number | null)[] | null;
  turns: [number, number][];
  turn_rewards: (number | null)[];
  versions: [number, number, number][] | null;
  text: string | null;
  token_ends: number[] | null;
  messages: Message[];
  tools: Json[] | null;
}

export interface Episode {
  id: string;
  reward: number | null;
  stop_reason: string;
  truncated: boolean;
  seed: string | null;
  row: Record<string, Json>;
  metrics: Record<string, number | null>;
  reward_parts: Record<string, number | null>;
  /** Why it earned nothing: the cause, the form of the mistake, and what it means; null where it earned something. */
  why: { cause: string; form: string; meaning: string } | null;
  contexts: Context[];
}

/** Why episodes earned nothing: `trainers/inspecting/causes.py` says what each field is. */
export interface Diagnosis {
  episodes: number;
  unpaid: number;
  bar: number;
  mean_reward: number | null;
  lowest_reward: number | null;
  groups: number;
  groups_alike: number;
  groups_unpaid: number;
  without_calls: number;
  causes: Cause[];
}

export interface Cause {
  name: string;
  meaning: string;
  count: number;
  share: number;
  examples: string[];
  mistakes: Mistake[];
}

export interface Mistake {
  form: string;
  count: number;
  written: string;
  answer: string;
  example: string;
}
