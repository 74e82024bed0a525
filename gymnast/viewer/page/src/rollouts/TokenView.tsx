// Every token of a context: by colour what it is, under the pointer or the arrow keys what is known.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { short } from "../data/numbers";
import { visible } from "../data/visible";
import type { Context } from "../data/wire";
import { KINDS, kinds, type Kind, shade, texts, turnsOf, versionOf } from "./token_facts";

const SHADES = { kind: "what it is", logprob: "log-probability", advantage: "advantage" } as const;

interface Props {
  context: Context;
  by: string;
  change: (changed: Record<string, string>) => void;
}

export function TokenView({ context, by, change }: Props) {
  const [at, setAt] = useState(context.turns[0]?.[0] ?? 0);
  const place = useRef<HTMLDivElement>(null);
  const [text, kind] = useMemo(() => [texts(context), kinds(context)], [context]);
  const spans = useMemo(() => drawn(context, text, kind, by), [context, by]);
  // Not by rendering: there may be thousands of tokens, and the pointer moves fast.
  useEffect(() => {
    const token = place.current?.querySelector<HTMLElement>(`[data-i="${at}"]`);
    token?.setAttribute("data-shown", "");
    return () => token?.removeAttribute("data-shown");
  }, [at, spans]);
  if (context.ids.length === 0) {
    return <p class="quiet">This episode was played by messages alone: it has no tokens.</p>;
  }
  const move = (to: number) => {
    const next = Math.max(0, Math.min(context.ids.length - 1, to));
    setAt(next);
    place.current!.querySelector(`[data-i="${next}"]`)?.scrollIntoView({ block: "nearest" });
  };
  const pressed = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    move(at + by);
  };
  const pointed = (event: Event) => {
    const i = (event.target as HTMLElement).dataset.i;
    if (i !== undefined) setAt(Number(i));
  };
  return (
    <div class="tokenview">
      <div class="bar" role="group" aria-label="Colour of the tokens">
        {Object.entries(SHADES).map(([name, label]) => (
          <button aria-pressed={by === name} onClick={() => change({ by: name })}>
            {label}
          </button>
        ))}
        {by === "kind" &&
          Object.entries(KINDS)
            .filter(([name]) => kind.includes(name as Kind))
            .map(([name, label]) => <span class={`key ${name}`}>{label}</span>)}
      </div>
      <About context={context} i={at} text={text[at]!} kind={kind[at]!} />
      <div
        class="tokens"
        ref={place}
        tabIndex={0}
        role="application"
        aria-label="Tokens; arrow keys go from one to the next"
        onMouseOver={pointed}
        onClick={pointed}
        onKeyDown={pressed}
      >
        {spans}
      </div>
    </div>
  );
}

function drawn(context: Context, text: readonly string[], kind: readonly Kind[], by: string) {
  const largest = (context.advantages ?? []).reduce<number>((most, each) => Math.max(most, Math.abs(each ?? 0)), 0);
  return text.map((each, i) => {
    const strength = shade(context, by, i, largest);
    const background =
      strength === 0
        ? undefined
        : `rgb(var(${strength < 0 ? "--low" : "--high"}) / ${(0.75 * Math.abs(strength)).toFixed(2)})`;
    return (
      <span data-i={i} class={`${kind[i]}${by === "kind" ? "" : " shaded"}`} style={{ background }}>
        {visible(each).replaceAll("\n", "⏎\n") || "∅"}
      </span>
    );
  });
}

interface AboutProps {
  context: Context;
  i: number;
  text: string;
  kind: Kind;
}

function About({ context, i, text, kind }: AboutProps) {
  const turn = useMemo(() => turnsOf(context), [context])[i]!;
  const logprob = context.logprobs[i] ?? Number.NaN;
  const facts: [string, string][] = [
    ["token", `${i}`],
    ["text", visible(JSON.stringify(text))],
    ["id", `${context.ids[i]}`],
    ["what", KINDS[kind]],
    ["loss mask", `${context.action_mask[i]}`],
  ];
  if (turn >= 0) {
    facts.push(["turn", `${turn + 1}, reward ${short(context.turn_rewards[turn])}`]);
    facts.push(["log-probability", `${short(logprob)} (${(100 * Math.exp(logprob)).toFixed(1)}%)`]);
    if (context.advantages !== null) facts.push(["advantage", short(context.advantages[i])]);
    if (context.token_rewards !== null) facts.push(["reward", short(context.token_rewards[i])]);
    const version = versionOf(context, i);
    if (version !== null) facts.push(["weights", `version ${version}`]);
  }
  return (
    <dl class="about" aria-live="polite">
      {facts.map(([name, value]) => (
        <div>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
