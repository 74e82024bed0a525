"""An episode's sandbox, and the fresh one in which what the policy made is graded."""
