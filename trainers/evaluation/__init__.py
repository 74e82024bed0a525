"""Evaluations: held-out episodes, and how far their numbers may be off."""
