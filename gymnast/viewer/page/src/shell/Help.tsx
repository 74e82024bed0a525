// The keys of the page.

import { useEffect, useRef } from "preact/hooks";

const KEYS: readonly (readonly [string, string])[] = [
  ["j, k", "next and previous episode"],
  ["1 … 5", "conversation, tokens, group, same row, all fields"],
  ["← → ↑ ↓", "among the tokens: one, or twenty, further"],
  ["/", "search the text"],
  ["Esc", "back to the list"],
  ["?", "these keys"],
];

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const typing = (event.target as HTMLElement).closest("input, select, textarea");
      if (event.key === "?" && typing === null) dialog.current!.showModal();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, []);
  return (
    <>
      <button aria-label="Keys" onClick={() => dialog.current!.showModal()}>
        ?
      </button>
      <dialog ref={dialog} aria-label="Keys">
        <table>
          <tbody>
            {KEYS.map(([key, what]) => (
              <tr>
                <th scope="row">
                  <kbd>{key}</kbd>
                </th>
                <td>{what}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <form method="dialog">
          <button>Close</button>
        </form>
      </dialog>
    </>
  );
}
