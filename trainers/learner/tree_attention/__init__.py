"""Attention over a tree of packed segments: what attends to what, by which kernel, and the join."""
