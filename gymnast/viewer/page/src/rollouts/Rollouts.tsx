// The rollouts of a run: filters, the list of what they leave, and the episode that is chosen.

import { useEffect, useMemo } from "preact/hooks";
import { useLoaded, useSettled } from "../data/loaded";
import { count } from "../data/numbers";
import { source } from "../data/source";
import type { Index, RunHead } from "../data/wire";
import { address, go, type Route } from "../route";
import { EpisodeView, TABS } from "./EpisodeView";
import { chosen, idOf } from "./filter";
import { FILTERS, Filters } from "./Filters";
import { List } from "./List";
import "./list.css";

const TYPING_MS = 150;

interface Props {
  runs: readonly RunHead[];
  route: Route;
}

export function Rollouts({ runs, route }: Props) {
  const run = runs.find(({ name }) => name === route.query.run) ?? runs[0]!;
  const loaded = useLoaded(() => source.index(run.name), run.name, [run.stamp]);
  if (loaded.error !== null) return <p class="error">{loaded.error}</p>;
  if (loaded.value === null) return <p class="quiet">Reading rollouts …</p>;
  if (loaded.value.file.length === 0) {
    return <p class="quiet">{run.name} has no rollouts yet.</p>;
  }
  return <Listed runs={runs} run={run.name} index={loaded.value} route={route} />;
}

function Listed({ runs, run, index, route }: Props & { run: string; index: Index }) {
  const { query } = route;
  const words = useSettled((query.words ?? "").trim(), TYPING_MS);
  const found = useLoaded(
    async () => (words === "" ? null : source.search(run, words)),
    `${run} ${words}`,
    [index],
  );
  const filters = JSON.stringify([query.sort, ...FILTERS.map((name) => query[name])]);
  const places = useMemo(
    () => (words !== "" && found.value === null ? [] : chosen(index, query, found.value)),
    [index, filters, found.value],
  );
  // Where none is named, the first one is open; on a telephone the list is.
  const first = places[0];
  const id = query.e || (first === undefined ? "" : idOf(index, first));
  const at = useMemo(() => placeOf(index, id), [index, id]);
  const change = (changed: Record<string, string>) =>
    go(address("rollouts", { ...query, ...changed }), !("e" in changed));
  const href = (to: string) => address("rollouts", { ...query, e: to, context: "", other: "" });
  useKeys(index, places, id, href, change);
  return (
    <div class={query.e ? "rollouts chosen" : "rollouts"}>
      <div class="side">
        <h1 class="hidden">Rollouts of {run}</h1>
        <Filters {...{ runs, run, index, query }} change={change} />
        <p class="quiet" role="status">
          {words !== "" && found.value === null && found.error === null
            ? "Searching …"
            : `${places.length.toLocaleString("en")} of ${count(index.file.length, "episode")}`}
          {found.error !== null && <span class="error"> {found.error}</span>}
        </p>
        <List index={index} places={places} selected={id} href={href} />
      </div>
      <div class="detail">
        {at === null ? (
          <p class="quiet">
            {id === "" ? "No episode is left by the filters." : `${run} has no episode ${id}.`}
          </p>
        ) : (
          <EpisodeView
            {...{ run, index, at, id, query, change, href }}
            back={address("rollouts", { ...query, e: "" })}
          />
        )}
      </div>
    </div>
  );
}

function placeOf(index: Index, id: string): number | null {
  for (let n = 0; n < index.file.length; n++) if (idOf(index, n) === id) return n;
  return null;
}

/** j and k: the next and the last episode; 1 to 5: ways to look at it; /: search. */
function useKeys(
  index: Index,
  places: readonly number[],
  id: string,
  href: (id: string) => string,
  change: (changed: Record<string, string>) => void,
) {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const typing = (event.target as HTMLElement).closest("input, select, textarea");
      if (document.querySelector("dialog[open]") !== null) return; // Escape closes that alone
      if (typing !== null || event.ctrlKey || event.metaKey || event.altKey) return;
      const tab = Object.keys(TABS)[Number(event.key) - 1];
      const by = { j: 1, k: -1 }[event.key];
      if (by !== undefined) {
        const at = places.findIndex((n) => idOf(index, n) === id);
        const next = places[at < 0 ? 0 : at + by];
        if (next !== undefined) go(href(idOf(index, next)), true);
      } else if (event.key === "/") {
        document.getElementById("words")?.focus();
        event.preventDefault();
      } else if (tab !== undefined && id !== "") {
        change({ tab });
      } else if (event.key === "Escape" && id !== "") {
        change({ e: "" });
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  });
}
