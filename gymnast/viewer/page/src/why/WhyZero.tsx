// "Why is the reward 0?": the causes that the data show, each with episodes to look at.

import { useLoaded } from "../data/loaded";
import { count, percent, short } from "../data/numbers";
import { source } from "../data/source";
import { visible } from "../data/visible";
import type { Cause, Diagnosis, RunHead } from "../data/wire";
import { address, go, type Route } from "../route";
import { Advice } from "../shell/Advice";
import "./why.css";

export function WhyZero({ runs, route }: { runs: readonly RunHead[]; route: Route }) {
  const run = runs.find(({ name }) => name === route.query.run) ?? runs[0]!;
  const file = route.query.file || null;
  const index = useLoaded(() => source.index(run.name), run.name, [run.stamp]);
  const found = useLoaded(() => source.why(run.name, file), `${run.name} ${file}`, [run.stamp]);
  // Those that are counted here: where no file is named, and the run has trained, those of training.
  const trained = index.value?.files.some((each) => !each.evaluation) ?? true;
  const kind = file === null && trained ? "training" : "";
  const alike = address("rollouts", { run: run.name, file: file ?? "", kind, alike: "1" });
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
      {found.value !== null && <Causes run={run.name} found={found.value} alike={alike} />}
    </div>
  );
}

function Causes({ run, found, alike }: { run: string; found: Diagnosis; alike: string }) {
  return (
    <>
      <p>
        {summary(found)}
        <Groups found={found} alike={alike} />
      </p>
      {found.causes.map((cause) => (
        <CauseView run={run} cause={cause} />
      ))}
    </>
  );
}

function summary(found: Diagnosis): string {
  const all = count(found.episodes, "episode");
  const negative = (found.lowest_reward ?? 0) < 0;
  const nothing =
    found.bar > 0
      ? `no more than the lowest reward, ${short(found.bar)}`
      : negative
        ? `at most 0, the lowest ${short(found.lowest_reward)}`
        : "nothing";
  return [
    found.unpaid === 0
      ? `Each of ${all} earned something.`
      : `${found.unpaid.toLocaleString("en")} of ${all} earned ${nothing}.`,
    ...(found.without_calls > 0 ? [`${found.without_calls.toLocaleString("en")} of these called no tool.`] : []),
    ...(found.mean_reward === null ? [] : [`The mean reward is ${short(found.mean_reward)}.`]),
  ].join(" ");
}

/** What the groups taught, with a link to those that taught nothing; nothing where all of them did. */
function Groups({ found, alike: link }: { found: Diagnosis; alike: string }) {
  const { groups: all, groups_alike: alike, groups_unpaid: unpaid } = found;
  if (alike === 0) return null;
  const which = alike < all ? `${alike} of ${count(all, "group")}` : all === 1 ? "the only group" : `all ${all} groups`;
  const those = alike === 1 ? "that group" : unpaid === alike ? "those groups" : `${unpaid} of those groups`;
  return (
    <>
      {" "}
      In <a href={link}>{which}</a> every episode had the same reward, which teaches nothing.
      {unpaid > 0 && ` No episode of ${those} earned anything.`}
    </>
  );
}

function CauseView({ run, cause }: { run: string; cause: Cause }) {
  const link = (id: string) => address("rollouts", { run, e: id });
  const linked = new Set(cause.mistakes.map((mistake) => mistake.example));
  const more = cause.examples.filter((id) => !linked.has(id));
  return (
    <section class="cause" aria-label={cause.name}>
      <div>
        <h2>
          {cause.name}{" "}
          <span class="quiet">
            {count(cause.count, "episode")}, {percent(cause.share)}
          </span>
        </h2>
        <div class="gauge broad" aria-hidden="true">
          <span style={{ width: `${100 * cause.share}%` }} />
        </div>
        <p>{cause.meaning}</p>
        {more.length > 0 && (
          <p>
            {linked.size > 0 ? "More examples: " : "Examples: "}
            {more.map((id) => (
              <a class="example" href={link(id)}>
                {id}
              </a>
            ))}
          </p>
        )}
      </div>
      {cause.mistakes.length > 0 && <Mistakes cause={cause} link={link} />}
    </section>
  );
}

function Mistakes({ cause, link }: { cause: Cause; link: (id: string) => string }) {
  return (
    <div class="wide" tabIndex={0} role="region" aria-label={`Most common forms of ${cause.name}`}>
      <table class="stacks">
        <thead>
          <tr>
            {["Most common form", "Times", "As written", "Error or answer", "Example"].map((name) => (
              <th scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {cause.mistakes.map((mistake) => (
            <tr>
              <td data-label="Form">{visible(mistake.form)}</td>
              <td data-label="Times" class="number">
                {mistake.count}
              </td>
              <td data-label="As written">
                <code>{clipped(mistake.written)}</code>
              </td>
              <td data-label="Error or answer">{clipped(mistake.answer)}</td>
              <td data-label="Example">
                <a href={link(mistake.example)}>{mistake.example}</a>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function clipped(text: string): string {
  return visible(text.length > 160 ? `${text.slice(0, 160)}…` : text) || "–";
}
