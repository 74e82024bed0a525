"""Whose a box is, which are open, and how what belongs to one is found once it must end."""
