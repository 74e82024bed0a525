"""Boxes on this machine's own kernel: Landlock, bubblewrap, and a folder without any isolation."""
