"""The engine that samples in this process: its steps, and what it keeps between them."""
