"""New weights for vLLM servers: the ways they get there, and the check that they did."""
