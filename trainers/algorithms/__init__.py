"""Algorithms as pure functions: advantages, losses, aggregations, and the divergence from a reference."""
