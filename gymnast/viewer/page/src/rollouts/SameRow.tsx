// The same row at other times: its rewards over steps, and the episode to compare with.

import { useMemo } from "preact/hooks";
import { useLoaded } from "../data/loaded";
import { short } from "../data/numbers";
import { source } from "../data/source";
import type { Index } from "../data/wire";
import { Difference } from "./Difference";
import { idOf } from "./filter";

interface Props {
  run: string;
  index: Index;
  at: number;
  other: string;
  change: (changed: Record<string, string>) => void;
}

export function SameRow({ run, index, at, other, change }: Props) {
  const places = useMemo(() => sameRow(index, at), [index, at]);
  const here = idOf(index, at);
  const elsewhere = places.findLast((n) => index.file[n]! < index.file[at]!);
  const against = other || idOf(index, elsewhere ?? places.find((n) => n !== at) ?? at);
  const loaded = useLoaded(
    () => source.episodes(run, [against, here]),
    `${run} ${against} ${here}`,
  );
  if (places.length === 1) return <p class="quiet">This row was played only here.</p>;
  return (
    <div class="samerow">
      <table>
        <caption>The same row, played {places.length} times</caption>
        <thead>
          <tr>
            <th scope="col">When</th>
            <th scope="col">Members and their rewards</th>
          </tr>
        </thead>
        <tbody>
          {byFile(index, places).map(([file, members]) => (
            <tr>
              <th scope="row">{index.files[file]!.name}</th>
              <td>
                {members.map((n) => {
                  const id = idOf(index, n);
                  return (
                    <button
                      aria-pressed={id === against}
                      disabled={id === here}
                      title={id === here ? "the episode that is shown" : `compare with ${id}`}
                      onClick={() => change({ other: id })}
                    >
                      {nameOf(index, members, n)}: {short(index.reward[n])}
                    </button>
                  );
                })}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {loaded.error !== null && <p class="error">{loaded.error}</p>}
      {loaded.value !== null && against !== here && (
        <Difference before={loaded.value[0]!} after={loaded.value[1]!} />
      )}
    </div>
  );
}

/** "member 2"; with its group where a step has played the row in several. */
function nameOf(index: Index, members: readonly number[], n: number): string {
  const groups = new Set(members.map((each) => index.group[each]));
  return `${groups.size > 1 ? `group ${index.group[n]}, ` : ""}member ${index.member[n]}`;
}

function sameRow(index: Index, at: number): number[] {
  const found: number[] = [];
  for (let n = 0; n < index.row.length; n++) if (index.row[n] === index.row[at]) found.push(n);
  return found;
}

function byFile(index: Index, places: readonly number[]): [number, number[]][] {
  const found = new Map<number, number[]>();
  for (const n of places) {
    const file = index.file[n]!;
    found.set(file, [...(found.get(file) ?? []), n]);
  }
  return [...found];
}
