// Where the page has its data from: the server that sent it, or the file that it is.

import type { Diagnosis, Episode, Index, Metrics, Overview } from "./wire";

export interface Source {
  overview(): Promise<Overview>;
  metrics(run: string): Promise<Metrics>;
  index(run: string): Promise<Index>;
  episodes(run: string, ids: readonly string[]): Promise<Episode[]>;
  why(run: string, file: string | null): Promise<Diagnosis>;
  /** The ids of the episodes whose text has the words, of those that are named. */
  search(run: string, words: string): Promise<Set<string>>;
}

class Served implements Source {
  overview() {
    return asked<Overview>("overview", {});
  }
  metrics(run: string) {
    return asked<Metrics>("metrics", { run });
  }
  index(run: string) {
    return asked<Index>("index", { run });
  }
  episodes(run: string, ids: readonly string[]) {
    return asked<Episode[]>("episodes", [["run", run], ...ids.map((id) => ["id", id])]);
  }
  why(run: string, file: string | null) {
    return asked<Diagnosis>("why", file === null ? { run } : { run, file });
  }
  async search(run: string, words: string) {
    return new Set(await asked<string[]>("search", { run, words }));
  }
}

async function asked<T>(what: string, query: Record<string, string> | string[][]): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(`api/${what}?${new URLSearchParams(query)}`);
  } catch {
    throw new Error("The server does not answer: `gymnast view` has ended.");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()) as T;
}

/** The data of a file lie in elements of their own, compressed, and are read when they are asked for. */
class Embedded implements Source {
  overview() {
    return held<Overview>("overview");
  }
  metrics(run: string) {
    return held<Metrics>(`metrics ${run}`);
  }
  index(run: string) {
    return held<Index>(`index ${run}`);
  }
  episodes(run: string, ids: readonly string[]) {
    return Promise.all(
      ids.map(async (id) => {
        const group = await held<Episode[]>(`group ${run} ${id.slice(0, id.lastIndexOf("/"))}`);
        const found = group.find((episode) => episode.id === id);
        if (found === undefined) throw new Error(`${id} is not in this file`);
        return found;
      }),
    );
  }
  why(run: string, file: string | null) {
    return held<Diagnosis>(file === null ? `why ${run}` : `why ${run} ${file}`);
  }
  async search(run: string, words: string) {
    const wanted = words.toLowerCase();
    const { files, file, group } = await this.index(run);
    const groups = new Set(file.map((place, n) => `group ${run} ${files[place]!.name}/${group[n]}`));
    const found = new Set<string>();
    for (const name of groups) {
      for (const { id, contexts } of await held<Episode[]>(name)) {
        if (contexts.some((context) => textOf(context).includes(wanted))) found.add(id);
      }
    }
    return found;
  }
}

function textOf(context: Episode["contexts"][number]): string {
  return (context.text ?? JSON.stringify(context.messages)).toLowerCase();
}

const kept = new Map<string, Promise<unknown>>();

function held<T>(name: string): Promise<T> {
  let value = kept.get(name);
  if (value === undefined) {
    value = unpacked(name);
    kept.set(name, value);
  }
  return value as Promise<T>;
}

async function unpacked(name: string): Promise<unknown> {
  const element = document.querySelector(`script[data-name="${CSS.escape(name)}"]`);
  if (element === null) throw new Error(`This file does not hold "${name}"`);
  const bytes = Uint8Array.from(atob(element.textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

export const source: Source =
  document.querySelector("script[data-name]") === null ? new Served() : new Embedded();
