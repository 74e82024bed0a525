"""Demonstrations: episodes that somebody else played, as tokens to learn from."""
