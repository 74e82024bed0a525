"""The host's side of a box in which a worker answers: the program that is sent, and the talk with it."""
