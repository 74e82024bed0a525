"""Playing saved episodes again in their environment, and saying where they differ."""
