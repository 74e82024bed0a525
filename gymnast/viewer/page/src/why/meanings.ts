// The causes of no reward, as `trainers/inspecting/cause.py` names them.

/** What each cause means, and what to do about it. */
export const MEANINGS: Readonly<Record<string, string>> = {
  "no reward given":
    "The environment or a reward function returned None. Such episodes are left out of training.",
  "box broken": "The policy broke its sandbox, or what the episode ran on broke.",
  "cut off":
    "A limit ended the episode before it was done: raise max_new_tokens, context_length, max_tokens or " +
    "the timeout that is named, or ask for shorter answers.",
  "no calls":
    "Tools were offered, and the policy called none. Show it a call: worked_turns, or a warm-up on " +
    "demonstrations.",
  "malformed calls":
    "The last calls could not be read. Demonstrations of the right form help most; so does a template " +
    "that says it.",
  "unknown tools": "The last calls named a tool that there is not.",
  "wrong arguments": "The last calls had arguments that the tool does not take. Look at its schema.",
  "failed tools": "The tools of the last calls raised. Where no argument explains it, mend the tool.",
  timeouts: "The tools of the last calls took longer than timeout_s.",
  "no final answer": "The last calls succeeded, and max_turns ended the episode: allow more turns.",
  "wrong answer":
    "The episode ended by itself, and what it said or did earned nothing. Look at the last results, and at " +
    "what the reward asks for.",
};
