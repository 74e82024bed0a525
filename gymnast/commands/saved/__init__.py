"""The commands that look at the episodes that a run has saved."""
