"""Tools: how a function becomes one, what the policy is shown of it, and how a call is checked and run."""
