// A value that comes later: what a view shows meanwhile, and when it does not come.

import { useEffect, useState } from "preact/hooks";

export interface Loaded<T> {
  value: T | null;
  error: string | null;
}

/**
 * The value that `load` promises, asked for again where a dependency changes. While the next one is
 * on its way, the last one of the same `subject` stays, so that nothing flickers while a run goes on.
 */
export function useLoaded<T>(
  load: () => Promise<T>,
  subject: string,
  dependencies: readonly unknown[] = [],
): Loaded<T> {
  const [state, setState] = useState<Loaded<T> & { subject: string }>({
    value: null,
    error: null,
    subject,
  });
  useEffect(() => {
    let wanted = true;
    load().then(
      (value) => wanted && setState({ value, error: null, subject }),
      (error: unknown) =>
        wanted && setState({ value: null, error: String((error as Error).message), subject }),
    );
    return () => {
      wanted = false;
    };
  }, [subject, ...dependencies]);
  return state.subject === subject ? state : { value: null, error: null };
}

/** A value that follows another one once that has stayed the same for a while. */
export function useSettled<T>(value: T, afterMs: number): T {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => settle(value), afterMs);
    return () => window.clearTimeout(timer);
  }, [value, afterMs]);
  return settled;
}
