// What is shown is in the address behind "#", so that it can be shared, and "back" goes back.

import { useEffect, useState } from "preact/hooks";

export interface Route {
  page: "runs" | "rollouts" | "why";
  query: Readonly<Record<string, string>>;
}

const PAGES: readonly string[] = ["runs", "rollouts", "why"];

export function parsed(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const page = PAGES.includes(path) ? (path as Route["page"]) : "runs";
  return { page, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(page: Route["page"], query: Readonly<Record<string, string>>): string {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  return given.length > 0 ? `#/${page}?${new URLSearchParams(given)}` : `#/${page}`;
}

/** Show something else; `replace` where "back" should pass over what is shown now. */
export function go(to: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", to);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parsed(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parsed(location.hash));
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}
