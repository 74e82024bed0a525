"""A model's own forward pass, Transformers' caches, and several sequences in one."""
