"""A run while it goes on: what is known, how it looks, where it is drawn, which keys it takes."""
