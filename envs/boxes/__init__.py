"""An episode's box, and the fresh box in which the policy's work is graded."""
