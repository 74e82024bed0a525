// "Why is the reward 0?": the causes that the data show, each with episodes to look at.

import { useLoaded } from "../data/loaded";
import { count, percent, short } from "../data/numbers";
import { source } from "../data/source";
import type { Cause, RunHead, Why as Found } from "../data/wire";
import { address, go, type Route } from "../route";

export function Why({ runs, route }: { runs: readonly RunHead[]; route: Route }) {
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
          <select value={run.name} onChange={(event) => change({ run: event.currentTarget.value, file: "" })}>
            {runs.map((each) => (
              <option>{each.name}</option>
            ))}
          </select>
        </label>
        <label class="field">
          Rollouts
          <select value={file ?? ""} onChange={(event) => change({ file: event.currentTarget.value })}>
            <option value="">all</option>
            {(index.value?.files ?? []).map((each) => (
              <option>{each.name}</option>
            ))}
          </select>
        </label>
      </form>
      {found.error !== null && <p class="error">{found.error}</p>}
      {found.error === null && found.value === null && <p class="quiet">Reading rollouts …</p>}
      {found.value !== null && <Causes run={run.name} found={found.value} />}
    </div>
  );
}

function Causes({ run, found }: { run: string; found: Found }) {
  const without = found.episodes - found.rewarded;
  return (
    <>
      <p>
        {count(without, "episode")} of {found.episodes.toLocaleString("en")} earned nothing
        {found.lowest !== null && found.lowest !== 0 && ` (${short(found.lowest)}, the lowest reward)`}.{" "}
        {found.groups_alike} of {count(found.groups, "group")} had one reward for all their episodes, and
        taught nothing.
      </p>
      {without === 0 && found.episodes > 0 && <p>Every episode earned something.</p>}
      {found.causes.map((cause) => (
        <CauseView run={run} cause={cause} />
      ))}
    </>
  );
}

function CauseView({ run, cause }: { run: string; cause: Cause }) {
  const link = (id: string) => address("rollouts", { run, e: id });
  return (
    <section class="cause">
      <h2>
        {cause.title}{" "}
        <span class="quiet">
          {count(cause.episodes, "episode")}, {percent(cause.share)}
        </span>
      </h2>
      <div class="gauge broad" aria-hidden="true">
        <span style={{ width: `${100 * cause.share}%` }} />
      </div>
      <p>{cause.advice}</p>
      {cause.forms.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">Most frequent</th>
              <th scope="col">Times</th>
              <th scope="col">For example</th>
            </tr>
          </thead>
          <tbody>
            {cause.forms.map((form) => (
              <tr>
                <td>
                  <code>{form.text}</code>
                </td>
                <td class="number">{form.count}</td>
                <td>
                  <a href={link(form.example)}>{form.example}</a>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
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
