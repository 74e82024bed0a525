// The episodes of one row side by side: what each earned, by which parts, and what it said.

import { useLoaded } from "../data/loaded";
import { count, short } from "../data/numbers";
import { source } from "../data/source";
import type { Episode, Index } from "../data/wire";
import { Conversation } from "./Conversation";
import { ending } from "./endings";
import { idOf } from "./filter";
import { Reward } from "./List";

interface Props {
  run: string;
  index: Index;
  at: number;
  href: (id: string) => string;
}

const MOST = 16;

export function Group({ run, index, at, href }: Props) {
  const ids = membersOf(index, at).map((n) => idOf(index, n));
  const loaded = useLoaded(
    () => source.episodes(run, ids.slice(0, MOST)),
    `${run} ${ids.join()}`,
  );
  if (loaded.error !== null) return <p class="error">{loaded.error}</p>;
  if (loaded.value === null) return <p class="quiet">Reading {ids.length} episodes …</p>;
  return (
    <>
      {ids.length > MOST && (
        <p class="quiet">
          The first {MOST} of {ids.length} episodes.
        </p>
      )}
      <div class="members" role="region" aria-label="Episodes of the group">
        {loaded.value.map((episode) => (
          <Member key={episode.id} episode={episode} href={href} here={episode.id === idOf(index, at)} />
        ))}
      </div>
    </>
  );
}

function Member({ episode, href, here }: { episode: Episode; href: (id: string) => string; here: boolean }) {
  const parts = Object.entries(episode.reward_parts);
  return (
    <section class={here ? "member here" : "member"} aria-label={episode.id}>
      <h3>
        <a href={href(episode.id)}>member {episode.id.split("/").at(-1)}</a>{" "}
        <Reward value={episode.reward} />
      </h3>
      <dl class="facts">
        <div>
          <dt>advantage</dt>
          <dd>{short(advantageOf(episode))}</dd>
        </div>
        {parts.length > 1 &&
          parts.map(([name, value]) => (
            <div>
              <dt>{name}</dt>
              <dd>{short(value)}</dd>
            </div>
          ))}
      </dl>
      <p class="ending">{ending(episode.stop_reason)}.</p>
      {episode.contexts.map((context, n) => (
        <>
          {episode.contexts.length > 1 && (
            <h4 class="label">
              Context {n}: {count(context.ids.length, "token")}
            </h4>
          )}
          <Conversation context={context} folded />
        </>
      ))}
    </section>
  );
}

/** The places of the episodes of the same group. */
export function membersOf(index: Index, at: number): number[] {
  const found: number[] = [];
  for (let n = 0; n < index.file.length; n++) {
    if (index.file[n] === index.file[at] && index.group[n] === index.group[at]) found.push(n);
  }
  return found;
}

/** The mean advantage of what was sampled; null where nothing was learned from it. */
export function advantageOf(episode: Episode): number | null {
  let [sum, sampled] = [0, 0];
  for (const { advantages, action_mask: mask } of episode.contexts) {
    if (advantages === null) continue;
    mask.forEach((bit, i) => {
      if (bit) sum += advantages[i] ?? 0;
      sampled += bit;
    });
  }
  return sampled === 0 ? null : sum / sampled;
}
