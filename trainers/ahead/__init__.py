"""Where the episodes of a step come from: played in turn with training, or ahead of it."""
