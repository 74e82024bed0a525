"""What a chat template does, derived from its renderings of marked conversations."""
