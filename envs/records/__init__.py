"""The records of an episode: messages, calls, turns, scores, metrics and timings."""
