"""A run's model as others get it: alone in a folder, with a card, or on a hub."""
