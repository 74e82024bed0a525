// The list of episodes, of which only the lines in sight are in the page.

import { useEffect, useRef, useState } from "preact/hooks";
import { count, short } from "../data/numbers";
import { visible } from "../data/visible";
import type { Index } from "../data/wire";
import { idOf } from "./filter";

interface Props {
  index: Index;
  places: readonly number[];
  selected: string;
  href: (id: string) => string;
}

const LINE = 46;
const BEYOND = 8;

export function List({ index, places, selected, href }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const at = places.findIndex((n) => idOf(index, n) === selected);
  useEffect(() => {
    const element = box.current!;
    const look = () => setView({ top: element.scrollTop, height: element.clientHeight });
    look();
    element.addEventListener("scroll", look, { passive: true });
    const watched = new ResizeObserver(look);
    watched.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      watched.disconnect();
    };
  }, []);
  useEffect(() => {
    const element = box.current!;
    if (at < 0) return;
    const [top, bottom] = [at * LINE, (at + 1) * LINE];
    if (top < element.scrollTop) element.scrollTop = top;
    if (bottom > element.scrollTop + element.clientHeight) {
      element.scrollTop = bottom - element.clientHeight;
    }
  }, [at]);
  const first = Math.max(0, Math.floor(view.top / LINE) - BEYOND);
  const last = Math.min(places.length, Math.ceil((view.top + view.height) / LINE) + BEYOND);
  return (
    <div class="list" ref={box} tabIndex={0} role="region" aria-label="Episodes">
      <ol style={{ height: `${places.length * LINE}px` }}>
        {places.slice(first, last).map((n, line) => {
          const id = idOf(index, n);
          return (
            <li key={id} style={{ top: `${(first + line) * LINE}px` }}>
              <a href={href(id)} aria-current={id === selected ? "true" : undefined}>
                <Head index={index} n={n} />
              </a>
            </li>
          );
        })}
      </ol>
    </div>
  );
}

function Head({ index, n }: { index: Index; n: number }) {
  const failed = Object.values(index.errors[n]!).reduce((sum, each) => sum + each, 0);
  return (
    <>
      <span class="line">
        <Reward value={index.reward[n]!} />
        <span class="id">{idOf(index, n)}</span>
        <span class="quiet">
          {index.stop[n]} · {count(index.turns[n]!, "turn")}
          {failed > 0 ? ` · ${count(failed, "error")}` : ""}
        </span>
      </span>
      <span class="snippet">{visible(index.rows[index.row[n]!]!.snippet)}</span>
    </>
  );
}

/** A reward, with a bar of its size, so that colour is not needed to tell it. */
export function Reward({ value }: { value: number | null }) {
  const part = Math.max(0, Math.min(1, value ?? 0));
  return (
    <span class="reward" title="reward">
      <span class="gauge" aria-hidden="true">
        <span style={{ width: `${100 * part}%` }} />
      </span>
      {value === null ? "none" : short(value)}
    </span>
  );
}
