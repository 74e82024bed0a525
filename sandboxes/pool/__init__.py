"""Boxes that are kept ready: the pool, its stock and waiting line, and what fills it."""
