// What the metrics mean whose plots everybody sees, in the words of docs/metrics.md.

/** By name, or by the beginning of a name, where that ends in "/". */
const MEANINGS: Readonly<Record<string, string>> = {
  "reward/mean": "mean reward of the episodes that a step trained on",
  "eval/reward/mean": "mean reward of the rows that are held out from training",
  loss: "what the optimizer makes smaller, as a mean over its updates",
  entropy: "how undecided the policy is about a token: 0 where it is certain",
  kl: "how far the policy has moved from the reference model, a token",
  "engine/logprob_difference":
    "how far the trainer and the engine that samples disagree on a token's log-probability",
  grad_norm: "length of the gradient, before it is clipped",
  "episodes/turns": "mean number of the policy's turns in an episode",
  "episodes/stop/": "share of episodes that ended so",
  "advantage/groups_alike":
    "share of groups in which all episodes have the same reward, which teaches nothing",
  "tools/calls": "calls of tools in all episodes of a step",
  "tools/errors/": "calls that failed so",
  "tokens/per_s": "tokens that are sampled in a second",
  "time/step_s": "the whole step",
  "time/rollout_s": "playing the episodes",
  "time/train_s": "learning from the episodes",
  "time/model_s": "the policy's sampling",
  "time/waiting_s": "waiting until the engine takes the request",
  "time/environment_s": "the environment: its tools, its reward and its sandbox",
};

export function meaning(name: string): string | undefined {
  return MEANINGS[name] ?? MEANINGS[name.slice(0, name.lastIndexOf("/") + 1)];
}
