// One episode: what it earned and why it ended, and the ways to look at it.

import { useLoaded } from "../data/loaded";
import { count, short } from "../data/numbers";
import { source } from "../data/source";
import { visible } from "../data/visible";
import type { Episode, Index } from "../data/wire";
import { address } from "../route";
import { Conversation } from "./Conversation";
import { ending } from "./endings";
import { type Query } from "./filter";
import { advantageOf, Group } from "./Group";
import { Reward } from "./List";
import { SameRow } from "./SameRow";
import { TokenView } from "./TokenView";
import { Tools } from "./Tools";
import "./episode.css";

export const TABS = {
  conversation: "Conversation",
  tokens: "Tokens",
  group: "Group",
  row: "Same row",
  all: "All fields",
} as const;

interface Props {
  run: string;
  index: Index;
  at: number;
  id: string;
  query: Query;
  change: (changed: Record<string, string>) => void;
  href: (id: string) => string;
  back: string;
}

export function EpisodeView({ run, index, at, id, query, change, href, back }: Props) {
  const loaded = useLoaded(() => source.episodes(run, [id]), `${run} ${id}`);
  const tab = (query.tab ?? "") in TABS ? (query.tab as keyof typeof TABS) : "conversation";
  if (loaded.error !== null) return <p class="error">{loaded.error}</p>;
  if (loaded.value === null) return <p class="quiet">Reading {id} …</p>;
  const episode = loaded.value[0]!;
  const context = episode.contexts[Number(query.context ?? 0)] ?? episode.contexts[0]!;
  return (
    <article class="episode" aria-label={`Episode ${id}`}>
      <header>
        <a class="back" href={back}>
          ‹ all
        </a>
        <h2>{id}</h2>
        <Reward value={episode.reward} />
        <Facts episode={episode} />
      </header>
      <p class="ending">{ending(episode.stop_reason)}.</p>
      <WhyNothing run={run} episode={episode} />
      <nav class="tabs" aria-label="Ways to look at the episode">
        {Object.entries(TABS).map(([name, label]) => (
          <button aria-pressed={tab === name} onClick={() => change({ tab: name })}>
            {label}
          </button>
        ))}
        {episode.contexts.length > 1 && tab !== "group" && tab !== "row" && (
          <label class="field">
            Context{" "}
            <select
              value={query.context ?? "0"}
              onChange={(event) => change({ context: event.currentTarget.value })}
            >
              {episode.contexts.map((each, n) => (
                <option value={n}>
                  {n}: {count(each.ids.length, "token")}
                </option>
              ))}
            </select>
          </label>
        )}
      </nav>
      {tab === "conversation" && (
        <>
          {context.tools !== null && <Tools tools={context.tools} />}
          <Conversation context={context} />
        </>
      )}
      {tab === "tokens" && (
        <TokenView key={`${id} ${query.context}`} context={context} by={query.by || "kind"} change={change} />
      )}
      {tab === "group" && <Group run={run} index={index} at={at} href={href} />}
      {tab === "row" && (
        <SameRow run={run} index={index} at={at} other={query.other ?? ""} change={change} />
      )}
      {tab === "all" && <AllFields episode={episode} tools={context.tools} />}
    </article>
  );
}

function Facts({ episode }: { episode: Episode }) {
  const sampled = episode.contexts.reduce(
    (sum, { action_mask: mask }) => sum + mask.reduce((ones, bit) => ones + bit, 0),
    0,
  );
  const all = episode.contexts.reduce((sum, { ids }) => sum + ids.length, 0);
  const turns = episode.contexts.reduce((sum, each) => sum + each.turns.length, 0);
  const facts: [string, string][] = [
    ["turns", `${turns}`],
    ["tokens", `${all}, ${sampled} sampled`],
    ["advantage", short(advantageOf(episode))],
    ...Object.entries(episode.reward_parts).map(
      ([name, value]) => [`part ${name}`, short(value)] as [string, string],
    ),
  ];
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The cause that "Why 0?" counts the episode under. */
function WhyNothing({ run, episode }: { run: string; episode: Episode }) {
  if (episode.why === null) return null;
  const { cause, form, meaning } = episode.why;
  const more = form.startsWith(episode.stop_reason) ? "" : form; // how it ended has been said
  return (
    <p class="nothing">
      Earned nothing: <a href={address("why", { run, file: episode.id.split("/")[0]! })}>{cause}</a>
      {more !== "" && ` (${visible(more)})`}. <span class="quiet">{meaning}</span>
    </p>
  );
}

function AllFields({ episode, tools }: { episode: Episode; tools: Episode["contexts"][0]["tools"] }) {
  const metrics = Object.entries(episode.metrics).sort(([one], [other]) => (one < other ? -1 : 1));
  return (
    <>
      <h3>Row</h3>
      <pre>{visible(JSON.stringify(episode.row, null, 2))}</pre>
      {episode.seed !== null && (
        <>
          <h3>Seed of the environment</h3>
          <p>{episode.seed}</p>
        </>
      )}
      <h3>Metrics</h3>
      <table>
        <tbody>
          {metrics.map(([name, value]) => (
            <tr>
              <th scope="row">{name}</th>
              <td class="number">{short(value)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <h3>Tools</h3>
      <pre>{tools === null ? "none" : visible(JSON.stringify(tools, null, 2))}</pre>
    </>
  );
}
