"""A run's YAML: its sections, how it is read, and what it must say before anything starts."""
