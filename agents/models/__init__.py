"""Transformers models: loading and saving them, and whether and how they run on packed tokens."""
