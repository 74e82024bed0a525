"""The contract of every sandbox: its calls, limits and results, and modules sent into a box."""
