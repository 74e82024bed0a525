"""Who owns a box, which boxes are open, and how their processes are found and ended."""
