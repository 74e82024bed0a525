"""Several processes: how they are joined, and how weights are divided over them."""
