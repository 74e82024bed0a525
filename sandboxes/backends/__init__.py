"""The backends together: opening a box by a name, and removing what killed runs have left."""
