"""Tools: what the policy is shown of a function, and how its calls are checked and run."""
