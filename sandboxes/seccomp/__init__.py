"""Which system calls a box may make: one table, for the kernel and for container engines."""
