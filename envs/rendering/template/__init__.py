"""What a chat template does, read from its own rendering of marked conversations."""
