// "Why is the reward 0?": the causes that the data show, each with episodes to look at.

import { useLoaded } from "../data/loaded";
import { count, percent, short } from "../data/numbers";
import { source } from "../data/source";
import type { Cause, Diagnosis, RunHead } from "../data/wire";
import { address, go, type Route } from "../route";
import { Advice } from "../shell/Advice";
import "./why.css";

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

export function WhyZero({ runs, route }: { runs: readonly RunHead[]; route: Route }) {
  const run = runs.find(({ name }) => name === route.query.run) ?? runs[0]!;
  const file = route.query.file || null;
  const index = useLoaded(() => source.index(run.name), run.name, [run.stamp]);
  const found = useLoaded(() => source.why(run.name, file), `${run.name} ${file}`, [run.stamp]);
  const change = (changed: Record<string, string>) =>
    go(address("why", { ...route.query, ...changed }), true);
  return (
    <div class="why">
      <h1>Why is the reward 0?</h1>
      <form class="filters" aria-label="Of what">
        <label class="field">
          Run
          <select
            value={run.name}
            onChange={(event) => change({ run: event.currentTarget.value, file: "" })}
          >
            {runs.map((each) => (
              <option>{each.name}</option>
            ))}
          </select>
        </label>
        <label class="field">
          Rollouts
          <select
            value={file ?? ""}
            onChange={(event) => change({ file: event.currentTarget.value })}
          >
            <option value="">all of training</option>
            {(index.value?.files ?? []).map((each) => (
              <option>{each.name}</option>
            ))}
          </select>
        </label>
      </form>
      <Advice run={run} />
      {found.error !== null && <p class="error">{found.error}</p>}
      {found.error === null && found.value === null && <p class="quiet">Reading rollouts …</p>}
      {found.value !== null && <Causes run={run.name} found={found.value} />}
    </div>
  );
}

function Causes({ run, found }: { run: string; found: Diagnosis }) {
  return (
    <>
      <p>
        {found.unpaid.toLocaleString("en")} of {count(found.episodes, "episode")} earned nothing
        {found.bar !== 0 && ` (at most ${short(found.bar)}, the lowest reward)`}; the mean reward is{" "}
        {short(found.mean_reward)}.
        {found.groups > 0 &&
          ` ${found.groups_alike} of ${count(found.groups, "group")} had one reward for all their ` +
            `episodes, and taught nothing; in ${found.groups_unpaid} no episode earned anything.`}
      </p>
      {found.causes.map((cause) => (
        <CauseView run={run} cause={cause} />
      ))}
    </>
  );
}

function CauseView({ run, cause }: { run: string; cause: Cause }) {
  const link = (id: string) => address("rollouts", { run, e: id });
  return (
    <section class="cause" aria-label={cause.name}>
      <h2>
        {cause.name}{" "}
        <span class="quiet">
          {count(cause.count, "episode")}, {percent(cause.share)}
        </span>
      </h2>
      <div class="gauge broad" aria-hidden="true">
        <span style={{ width: `${100 * cause.share}%` }} />
      </div>
      <p>{MEANINGS[cause.name]}</p>
      {cause.mistakes.length > 0 && (
        <div class="wide" tabIndex={0} role="region" aria-label={`Commonest of ${cause.name}`}>
          <table>
            <thead>
              <tr>
                <th scope="col">Commonest</th>
                <th scope="col">Times</th>
                <th scope="col">As written</th>
                <th scope="col">Error or answer</th>
                <th scope="col">In</th>
              </tr>
            </thead>
            <tbody>
              {cause.mistakes.map((mistake) => (
                <tr>
                  <td>{mistake.form}</td>
                  <td class="number">{mistake.count}</td>
                  <td>
                    <code>{clipped(mistake.written)}</code>
                  </td>
                  <td>{clipped(mistake.answer)}</td>
                  <td>
                    <a href={link(mistake.example)}>{mistake.example}</a>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p>
        {cause.examples.map((id) => (
          <a class="example" href={link(id)}>
            {id}
          </a>
        ))}
      </p>
    </section>
  );
}

function clipped(text: string): string {
  return text.length > 160 ? `${text.slice(0, 160)}…` : text;
}
