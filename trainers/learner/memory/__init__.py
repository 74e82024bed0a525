"""How much memory a step of training takes, and what is done where that is too much."""
