"""The engine that samples in this process: what it does in a step, and what it keeps between steps."""
