"""How tool calls are written: markup, payloads, values, and what only looks like a call."""
