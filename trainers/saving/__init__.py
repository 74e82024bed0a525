"""What a run leaves on disk, whole or not at all, and what it needs to go on."""
