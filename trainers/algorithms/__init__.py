"""Algorithms: advantages, losses, aggregations, and the divergence from a reference."""
