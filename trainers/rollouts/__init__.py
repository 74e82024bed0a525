"""Rollouts: one episode, many at once, and their numbers."""
