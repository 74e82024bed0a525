"""What learns: from groups of trajectories to an optimizer step."""
