"""Episodes that are played in messages: by a solution, or by whoever else writes messages."""
