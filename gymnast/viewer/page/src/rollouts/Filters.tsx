// The fields above the list of episodes. What they hold stands in the address.

import { useMemo } from "preact/hooks";
import type { Index, RunHead } from "../data/wire";
import { choices, type Query } from "./filter";

interface Props {
  runs: readonly RunHead[];
  run: string;
  index: Index;
  query: Query;
  change: (changed: Record<string, string>) => void;
}

const FIELDS = ["kind", "environment", "stop", "error", "tool"] as const;
const LABELS = {
  kind: "Played in",
  environment: "Environment",
  stop: "Ended by",
  error: "Error",
  tool: "Tool",
} as const;
const NUMBERS = {
  from: "First step",
  to: "Last step",
  min: "Lowest reward",
  max: "Highest reward",
} as const;
const MOST_TAGS = 500;
export const FILTERS = [
  ...[...FIELDS, ...Object.keys(NUMBERS)],
  ...["tag", "words", "group", "row", "file", "alike"],
];

export function Filters({ runs, run, index, query, change }: Props) {
  const found = useMemo(() => choices(index), [index]);
  const both = new Set(index.files.map((file) => file.evaluation)).size > 1;
  const offered = { ...found, kind: both || query.kind ? ["training", "evaluation"] : [] };
  const set = FILTERS.filter((name) => (query[name] ?? "") !== "");
  const typed = (name: string) => (event: Event) =>
    change({ [name]: (event.currentTarget as HTMLInputElement).value });
  return (
    <form class="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      {runs.length > 1 && (
        <label class="field">
          Run
          <select value={run} onChange={typed("run")}>
            {runs.map((each) => (
              <option>{each.name}</option>
            ))}
          </select>
        </label>
      )}
      <label class="field words">
        Text
        <input
          id="words"
          type="search"
          value={query.words ?? ""}
          placeholder="said, called, or returned"
          onInput={typed("words")}
        />
      </label>
      {FIELDS.filter((name) => offered[name].length > 1 || query[name]).map((name) => (
        <label class="field">
          {LABELS[name]}
          <select value={query[name] ?? ""} onChange={typed(name)}>
            <option value="">{name === "kind" ? "both" : "any"}</option>
            {offered[name].map((value) => (
              <option>{value}</option>
            ))}
          </select>
        </label>
      ))}
      <label class="field">
        Row
        <input
          list="tags"
          value={query.tag ?? ""}
          placeholder="column=value"
          onInput={typed("tag")}
        />
        <datalist id="tags">
          {found.tag.slice(0, MOST_TAGS).map((tag) => (
            <option value={tag} />
          ))}
        </datalist>
      </label>
      {Object.entries(NUMBERS).map(([name, label]) => (
        <label class="field number">
          {label}
          <input type="number" step="any" value={query[name] ?? ""} onInput={typed(name)} />
        </label>
      ))}
      {(index.alike.some(Boolean) || query.alike) && (
        <label class="field">
          Groups
          <select value={query.alike ? "1" : ""} onChange={typed("alike")}>
            <option value="">all</option>
            <option value="1">with equal rewards</option>
          </select>
        </label>
      )}
      <label class="field">
        Order
        <select value={query.sort ?? ""} onChange={typed("sort")}>
          <option value="">training first</option>
          <option value="played">as played</option>
          <option value="lowest">lowest reward first</option>
          <option value="highest">highest reward first</option>
          <option value="longest">longest first</option>
        </select>
      </label>
      {set.length > 0 && (
        <button type="button" onClick={() => change(Object.fromEntries(set.map((name) => [name, ""])))}>
          Clear filters
        </button>
      )}
    </form>
  );
}
