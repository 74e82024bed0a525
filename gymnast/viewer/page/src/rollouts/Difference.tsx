// What changed between two episodes: what they earned, how they ended, and what was said.

import { diffWords } from "diff";
import { useMemo } from "preact/hooks";
import { short } from "../data/numbers";
import { visible } from "../data/visible";
import type { Context, Episode, Message } from "../data/wire";
import { contentText, promptLength } from "./Conversation";
import { advantageOf } from "./Group";

interface Props {
  before: Episode;
  after: Episode;
}

/** How much of what is the same is shown. */
const MOST = 2000;
/** How long the page may stand still while it compares. */
const PATIENCE_MS = 500;

export function Difference({ before, after }: Props) {
  return (
    <>
      <Outcomes before={before} after={after} />
      <Words before={before} after={after} />
    </>
  );
}

function Outcomes({ before, after }: Props) {
  const parts = new Set([before, after].flatMap((each) => Object.keys(each.reward_parts)));
  const facts: [string, (episode: Episode) => string][] = [
    ["reward", (each) => (each.reward === null ? "none" : short(each.reward))],
    ...[...parts].map((name): [string, (episode: Episode) => string] => [
      `part ${name}`,
      (each) => short(each.reward_parts[name]),
    ]),
    ["advantage", (each) => short(advantageOf(each))],
    ["stop reason", (each) => each.stop_reason],
  ];
  return (
    <table class="outcomes">
      <caption>What changed</caption>
      <thead>
        <tr>
          <td />
          <th scope="col">
            <del>{before.id}</del>
          </th>
          <th scope="col">
            <ins>{after.id}</ins>
          </th>
        </tr>
      </thead>
      <tbody>
        {facts.map(([name, of]) => (
          <Outcome name={visible(name)} before={of(before)} after={of(after)} />
        ))}
      </tbody>
    </table>
  );
}

function Outcome({ name, before, after }: { name: string; before: string; after: string }) {
  const same = before === after;
  return (
    <tr>
      <th scope="row">{name}</th>
      <td>{same ? before : <del>{before}</del>}</td>
      <td>{same ? after : <ins>{after}</ins>}</td>
    </tr>
  );
}

function Words({ before, after }: Props) {
  const [one, other, parts] = useMemo(() => {
    const several = before.contexts.length > 1 || after.contexts.length > 1;
    const texts = [asText(before, several), asText(after, several)] as const;
    return [...texts, diffWords(...texts, { timeout: PATIENCE_MS })];
  }, [before, after]);
  if (parts === undefined) {
    return (
      <>
        <p>The texts differ too much to be compared word by word, so both are shown whole.</p>
        <div class="members">
          <Whole id={before.id} text={one} />
          <Whole id={after.id} text={other} />
        </div>
      </>
    );
  }
  return (
    <pre class="difference">
      {parts.map((part) =>
        part.added ? (
          <ins>{part.value}</ins>
        ) : part.removed ? (
          <del>{part.value}</del>
        ) : part.value.length > MOST ? (
          `${part.value.slice(0, MOST / 2)}\n…\n${part.value.slice(-MOST / 2)}`
        ) : (
          part.value
        ),
      )}
    </pre>
  );
}

function Whole({ id, text }: { id: string; text: string }) {
  return (
    <section class="member" aria-label={id}>
      <h3>{id}</h3>
      <pre>{text}</pre>
    </section>
  );
}

/** All that is said in an episode, its contexts one after another. */
function asText({ contexts }: Episode, several: boolean): string {
  return contexts
    .flatMap((context, n) => [...(several ? [`context ${n}`] : []), contextText(context)])
    .join("\n\n");
}

function contextText(context: Context): string {
  const prompt = promptLength(context);
  return context.messages
    .map((message, n) => {
      const sampled = message.role === "assistant" && n >= prompt;
      return messageText(message, sampled ? "policy" : message.role);
    })
    .join("\n\n");
}

/** A message with its thoughts before it, and its calls and what it was word for word behind it. */
function messageText(message: Message, who: string): string {
  const { content = "", reasoning_content: thoughts, tool_calls: calls = [], raw } = message;
  return [
    ...(thoughts ? [`${who}, reasoning: ${visible(thoughts)}`] : []),
    `${who}: ${contentText(content)}`,
    ...calls.map(({ function: { name, arguments: given } }) => visible(`${name}(${JSON.stringify(given)})`)),
    ...(raw === undefined ? [] : [`${who}, word for word: ${visible(raw)}`]),
  ].join("\n");
}
