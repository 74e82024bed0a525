"""`check_env`: whether an environment keeps its contracts, and a report on it."""
