"""Looking at saved episodes: finding them, one by one or all that a filter takes; why unpaid."""
