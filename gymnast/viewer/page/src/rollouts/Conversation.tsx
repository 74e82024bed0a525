// A conversation in words: messages, with calls and results folded together.

import { short } from "../data/numbers";
import { visible } from "../data/visible";
import type { Call, Context, Json, Message } from "../data/wire";

const LONG = 1200;

interface Props {
  context: Context;
  /** Whether what came before the policy's first message is folded. */
  folded?: boolean;
}

export function Conversation({ context, folded = false }: Props) {
  const { messages } = context;
  const results = new Map<string, Message>();
  for (const message of messages) {
    const id = message.tool_call_id;
    if (message.role === "tool" && id !== undefined) results.set(id, message);
  }
  let turn = -1;
  const prompt = promptLength(context);
  const used = new Set<Message>();
  return (
    <ol class="conversation">
      {folded && prompt > 0 && (
        <li class="message">
          <details>
            <summary class="quiet">prompt</summary>
            {messages.slice(0, prompt).map((message) => (
              <>
                <div class="who">{message.role}</div>
                <Text value={message.content ?? ""} />
              </>
            ))}
          </details>
        </li>
      )}
      {messages.map((message, n) => {
        if (used.has(message) || (folded && n < prompt)) return null;
        const sampled = message.role === "assistant" && n >= prompt;
        if (sampled) turn += 1;
        const answers = (message.tool_calls ?? []).map((call, nth) => {
          const found = answerOf(call, nth, n, messages, results);
          if (found !== null) used.add(found);
          return found;
        });
        return (
          <li class={`message ${message.role}`}>
            <div class="who">
              {sampled ? "policy" : message.role}
              {sampled && <TurnReward context={context} turn={turn} />}
              {n < prompt && <span class="quiet"> prompt</span>}
            </div>
            {message.reasoning_content && (
              <details class="reasoning">
                <summary>reasoning, {message.reasoning_content.length} characters</summary>
                <pre>{visible(message.reasoning_content)}</pre>
              </details>
            )}
            <Text value={message.content ?? ""} />
            {(message.tool_calls ?? []).map((call, nth) => (
              <CallView call={call} result={answers[nth] ?? null} />
            ))}
            {message.raw !== undefined && (
              <details open>
                <summary class="quiet">word for word</summary>
                <pre>{visible(message.raw)}</pre>
              </details>
            )}
          </li>
        );
      })}
    </ol>
  );
}

function TurnReward({ context, turn }: { context: Context; turn: number }) {
  const reward = context.turn_rewards[turn];
  if (reward === undefined || reward === null || reward === 0) return null;
  return <span class="quiet"> turn {turn + 1}, reward {short(reward)}</span>;
}

/** How many messages came before the policy's first: all up to as many actions from the end. */
export function promptLength({ messages, turns }: Context): number {
  let left = turns.length;
  for (let n = messages.length - 1; n >= 0; n--) {
    if (messages[n]!.role === "assistant" && --left === 0) return n;
  }
  return turns.length === 0 ? messages.length : 0;
}

/** The result of a call: the one with its id, or the one as far behind the message as the call is in it. */
function answerOf(
  call: Call,
  nth: number,
  at: number,
  messages: readonly Message[],
  byId: ReadonlyMap<string, Message>,
): Message | null {
  const named = call.id === undefined ? undefined : byId.get(call.id);
  if (named !== undefined) return named;
  const next = messages[at + 1 + nth];
  return next?.role === "tool" ? next : null;
}

function CallView({ call, result }: { call: Call; result: Message | null }) {
  const said = result === null ? "" : contentText(result.content ?? "");
  if (call.function.name === "" && call.error !== undefined) {
    return <p class="error">{said || visible(call.error)}</p>;
  }
  return (
    <details class="call" open={call.error !== undefined}>
      <summary>
        <code>
          {visible(call.function.name)}({argumentsText(call.function.arguments)})
        </code>
        {call.error === undefined ? (
          <span class="quiet"> → {result === null ? "no result" : firstLine(said)}</span>
        ) : (
          <span class="error"> → not read</span>
        )}
      </summary>
      <p class="label">arguments</p>
      <pre>{pretty(call.function.arguments)}</pre>
      {call.error !== undefined && said !== visible(call.error) && (
        <>
          <p class="label">why it was not read</p>
          <pre>{visible(call.error)}</pre>
        </>
      )}
      <p class="label">{result === null ? "no result" : "result"}</p>
      <pre>{said}</pre>
    </details>
  );
}

function Text({ value }: { value: Json }) {
  const text = contentText(value);
  if (text === "") return null;
  if (text.length <= LONG) return <pre>{text}</pre>;
  return (
    <details>
      <summary>
        {text.slice(0, 300)} … <span class="quiet">{text.length} characters</span>
      </summary>
      <pre>{text}</pre>
    </details>
  );
}

/** What a message says, with control characters as escapes. */
export function contentText(value: Json): string {
  if (typeof value === "string") return visible(value);
  if (Array.isArray(value)) {
    return value
      .map((part) =>
        part !== null && typeof part === "object" && !Array.isArray(part) && "text" in part
          ? contentText(part.text!)
          : contentText(part),
      )
      .join("\n");
  }
  return value === null ? "" : visible(JSON.stringify(value));
}

function argumentsText(value: Json): string {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return firstLine(contentText(value));
  return Object.entries(value)
    .map(([name, each]) => visible(`${name}=${firstLine(JSON.stringify(each))}`))
    .join(", ");
}

function pretty(value: Json): string {
  return visible(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

function firstLine(text: string): string {
  const line = text.split("\n", 1)[0]!;
  return line.length > 80 || line.length < text.length ? `${line.slice(0, 80)}…` : line;
}
