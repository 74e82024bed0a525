"""A run's YAML as JSON Schema, which editors complete and check from."""
