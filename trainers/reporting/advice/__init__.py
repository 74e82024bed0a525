"""Saying in words that a run cannot learn, why, and what to do."""
