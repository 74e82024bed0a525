"""The token level of an episode: its contexts, their limits, and the spaces of ids."""
