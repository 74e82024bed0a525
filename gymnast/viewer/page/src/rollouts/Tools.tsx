// The tools that a policy was offered, folded to their names.

import { visible } from "../data/visible";
import type { Json } from "../data/wire";

export function Tools({ tools }: { tools: readonly Json[] }) {
  return (
    <details class="offered">
      <summary class="quiet">
        {tools.length === 1 ? "tool" : "tools"} offered: {tools.map(nameOf).join(", ")}
      </summary>
      {tools.map((tool) => (
        <pre>{visible(JSON.stringify(tool, null, 2))}</pre>
      ))}
    </details>
  );
}

/** Its name where it is written as templates have it; otherwise its beginning. */
function nameOf(tool: Json): string {
  const described = fields(fields(tool).function ?? tool);
  return visible(String(described.name ?? JSON.stringify(tool).slice(0, 40)));
}

function fields(value: Json): Record<string, Json> {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}
