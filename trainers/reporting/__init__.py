"""What people see of a run: the console, tables, samples, trackers."""
