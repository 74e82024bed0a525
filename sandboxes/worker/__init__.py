"""The host's side of the worker in a box: the program that is sent, and talking to it."""
