"""Which system calls a box may make: one table, as a filter for the kernel and as a profile for engines."""
