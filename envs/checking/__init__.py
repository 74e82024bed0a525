"""`check_env`: whether an environment keeps its contracts, and what is said of it."""
