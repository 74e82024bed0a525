"""The commands that look at what a run has saved."""
