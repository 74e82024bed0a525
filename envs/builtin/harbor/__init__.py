"""Harbor: tasks in folders, in the format of Harbor and Terminal-Bench 2."""
