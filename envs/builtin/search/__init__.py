"""Search: questions about documents, which a policy searches and reads."""

import os

# bm25s calls JAX where that is installed, which takes three quarters of a GPU unless told not to.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
