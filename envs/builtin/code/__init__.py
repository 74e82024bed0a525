"""Code-v0: Python functions graded by tests that the policy cannot see."""
