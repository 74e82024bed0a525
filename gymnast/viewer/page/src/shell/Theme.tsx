// Light or dark: as the system says, until it is chosen here.

import { useEffect, useState } from "preact/hooks";

const KEY = "gymnast-theme";

export function useTheme(): [string, (theme: string) => void] {
  const [theme, setTheme] = useState(() => kept() ?? (dark().matches ? "dark" : "light"));
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    const changed = () => kept() === null && setTheme(dark().matches ? "dark" : "light");
    dark().addEventListener("change", changed);
    return () => dark().removeEventListener("change", changed);
  }, []);
  return [
    theme,
    (chosen) => {
      keep(chosen);
      setTheme(chosen);
    },
  ];
}

export function Theme({ theme, change }: { theme: string; change: (theme: string) => void }) {
  const other = theme === "dark" ? "light" : "dark";
  return (
    <button aria-label={`Use the ${other} theme`} onClick={() => change(other)}>
      {theme === "dark" ? "☀" : "☾"}
    </button>
  );
}

function dark(): MediaQueryList {
  return window.matchMedia("(prefers-color-scheme: dark)");
}

// A browser may refuse to keep anything, as some do for files.
function kept(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keep(theme: string): void {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // then it holds until the page is left
  }
}
