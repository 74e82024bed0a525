// Why an episode ended, in words; `StopReason` in gymnast/types.py has the names.

const ENDINGS: Readonly<Record<string, string>> = {
  answered: "Ended with the policy's answer",
  stop_tool: "Ended by a call of the tool that ends it",
  environment: "Ended by the environment",
  max_turns: "Cut off after the most turns that it may have",
  max_tokens: "Cut off at the limit of tokens",
  context: "Cut off when the context was full",
  timeout: "Cut off when its time was up",
  error: "Ended by an error of what it ran on",
};

export function ending(reason: string): string {
  const words = ENDINGS[reason];
  return words === undefined ? `Ended by ${reason}` : `${words} (${reason})`;
}
