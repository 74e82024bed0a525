"""All backends: opening a box by the name of its backend, removing what killed runs left."""
