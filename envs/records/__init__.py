"""The records of an episode: messages, calls, turns, metrics and timings."""
