"""Transformers models: whether and how they run on packed tokens, and their adapters."""
