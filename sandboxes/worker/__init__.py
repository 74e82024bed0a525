"""The host's side of the worker in a box: starting it, and talking to it."""
