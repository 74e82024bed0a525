"""What an episode leaves: messages, calls, turns, why it ended, and its numbers."""
