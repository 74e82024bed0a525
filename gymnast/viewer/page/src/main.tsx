// The page: its head, and the view that the address names.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css"; // before those of the folders, which say more
import "./stacks.css";
import { source } from "./data/source";
import type { Overview } from "./data/wire";
import { Rollouts } from "./rollouts/Rollouts";
import { address, useRoute } from "./route";
import { Runs } from "./runs/Runs";
import { Help } from "./shell/Help";
import { Theme, useTheme } from "./shell/Theme";
import { WhyZero } from "./why/WhyZero";

const EVERY_MS = 2000;
const PAGES = { runs: "Runs", rollouts: "Rollouts", why: "Why 0?" } as const;

function Page() {
  const route = useRoute();
  const { overview, error } = useOverview();
  const [theme, setTheme] = useTheme();
  const { run = "" } = route.query;
  return (
    <>
      <header class="top">
        <span class="name">Gymnast</span>
        <nav aria-label="Pages">
          {Object.entries(PAGES).map(([page, label]) => (
            <a
              href={address(page as keyof typeof PAGES, page === "runs" ? {} : { run })}
              aria-current={route.page === page ? "page" : undefined}
            >
              {label}
            </a>
          ))}
        </nav>
        <span class="quiet">{overview?.partial}</span>
        <Help />
        <Theme theme={theme} change={setTheme} />
      </header>
      <main>
        {error !== null && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
        {overview === null && error === null && <p class="quiet">Reading …</p>}
        {overview !== null && route.page === "runs" && (
          <Runs runs={overview.runs} route={route} theme={theme} />
        )}
        {overview !== null && route.page === "rollouts" && <Rollouts runs={overview.runs} route={route} />}
        {overview !== null && route.page === "why" && <WhyZero runs={overview.runs} route={route} />}
      </main>
    </>
  );
}

/** What there is, asked for again every two seconds while a run may go on. */
function useOverview(): { overview: Overview | null; error: string | null } {
  const [state, setState] = useState<{ overview: Overview | null; error: string | null }>({
    overview: null,
    error: null,
  });
  useEffect(() => {
    let timer = 0;
    const ask = async () => {
      try {
        const overview = await source.overview();
        setState((last) => (same(last.overview, overview) ? { ...last, error: null } : { overview, error: null }));
        if (overview.live) timer = window.setTimeout(ask, EVERY_MS);
      } catch (error) {
        setState((last) => ({ ...last, error: (error as Error).message }));
        timer = window.setTimeout(ask, 5 * EVERY_MS);
      }
    };
    void ask();
    return () => window.clearTimeout(timer);
  }, []);
  return state;
}

function same(one: Overview | null, other: Overview): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

render(<Page />, document.getElementById("page")!);
