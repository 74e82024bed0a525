// What a run said about why it does not learn, while it went on: `gymnast rollouts RUN --why`
// prints it too.

import { visible } from "../data/visible";
import type { Advice as Said, RunHead } from "../data/wire";

export function Advice({ run, named = false }: { run: RunHead; named?: boolean }) {
  const said = latest(run.advice);
  if (said.length === 0) return null;
  return (
    <section class="advice" aria-label={`What ${run.name} advised during the run`}>
      <h2>{named ? `${run.name} advised during the run` : "Advice given during the run"}</h2>
      <ul>
        {said.map(({ step, cause, text }) => (
          <li>
            <span class="quiet">step {step}, </span>
            <strong>{visible(cause)}</strong>: {visible(text)}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The last piece of advice of each kind: an earlier one of the same kind is out of date. */
function latest(advice: readonly Said[]): Said[] {
  return [...new Map(advice.map((each) => [each.cause, each])).values()];
}
