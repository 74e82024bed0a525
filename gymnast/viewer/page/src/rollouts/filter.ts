// Which episodes are listed: pure functions of the index and of what stands in the address.

import type { Index } from "../data/wire";

export type Query = Readonly<Record<string, string>>;

/** The id of an episode, as the commands take it: file/group/member. */
export function idOf(index: Index, n: number): string {
  return `${index.files[index.file[n]!]!.name}/${index.group[n]}/${index.member[n]}`;
}

/** The places in the index of the episodes that are wanted, in the order that is wanted. */
export function chosen(index: Index, query: Query, found: ReadonlySet<string> | null): number[] {
  const tests = testsOf(index, query, found);
  const kept: number[] = [];
  for (let n = 0; n < index.file.length; n++) {
    if (tests.every((test) => test(n))) kept.push(n);
  }
  const reward = (n: number) => index.reward[n] ?? Number.NEGATIVE_INFINITY;
  const evaluated = (n: number) => Number(index.files[index.file[n]!]!.evaluation);
  if (!query.sort) kept.sort((one, other) => evaluated(one) - evaluated(other));
  if (query.sort === "lowest") kept.sort((one, other) => reward(one) - reward(other));
  if (query.sort === "highest") kept.sort((one, other) => reward(other) - reward(one));
  if (query.sort === "longest") kept.sort((one, other) => index.tokens[other]! - index.tokens[one]!);
  return kept;
}

type Test = (n: number) => boolean;

function testsOf(index: Index, query: Query, found: ReadonlySet<string> | null): Test[] {
  const file = (n: number) => index.files[index.file[n]!]!;
  const reward = (n: number) => index.reward[n] ?? Number.NaN;
  const given: Record<string, (wanted: string) => Test> = {
    kind: (wanted) => (n) => file(n).evaluation === (wanted === "evaluation"),
    from: (wanted) => (n) => file(n).step >= Number(wanted),
    to: (wanted) => (n) => file(n).step <= Number(wanted),
    file: (wanted) => (n) => file(n).name === wanted,
    environment: (wanted) => (n) => index.environment[n] === wanted,
    tag: (wanted) => tagged(index, wanted),
    row: (wanted) => (n) => index.row[n] === Number(wanted),
    min: (wanted) => (n) => reward(n) >= Number(wanted),
    max: (wanted) => (n) => reward(n) <= Number(wanted),
    stop: (wanted) => (n) => index.stop[n] === wanted,
    error: (wanted) => (n) => (index.errors[n]![wanted] ?? 0) > 0,
    tool: (wanted) => (n) => index.tools[n]!.includes(wanted),
    group: (wanted) => (n) => index.group[n] === Number(wanted),
    alike: () => (n) => index.alike[n]!,
  };
  const tests = Object.entries(given)
    .filter(([name]) => (query[name] ?? "") !== "")
    .map(([name, test]) => test(query[name]!));
  if (found !== null) tests.push((n) => found.has(idOf(index, n)));
  return tests;
}

/** "key=value": the rows in which the column holds it; "key" alone: those that have the column. */
function tagged(index: Index, wanted: string): Test {
  const [key = "", ...rest] = wanted.split("=");
  const value = rest.join("=").trim().toLowerCase();
  const fits = index.rows.map(({ tags }) => {
    const has = tags[key.trim()];
    return has !== undefined && (rest.length === 0 || has.toLowerCase() === value);
  });
  return (n) => fits[index.row[n]!]!;
}

/** The values that each filter can take, for its menu. */
export function choices(index: Index) {
  const sorted = (values: Iterable<string | null>) =>
    [...new Set(values)].filter((value) => value !== null).sort();
  return {
    environment: sorted(index.environment),
    stop: sorted(index.stop),
    error: sorted(index.errors.flatMap(Object.keys)),
    tool: sorted(index.tools.flat()),
    tag: sorted(index.rows.flatMap(({ tags }) => Object.entries(tags).map((tag) => tag.join("=")))),
  };
}
