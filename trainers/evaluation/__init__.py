"""Evaluations: episodes of rows that are not trained on, and how far their numbers may be off."""
