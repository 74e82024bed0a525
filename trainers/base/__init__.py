"""What all rooms of the trainer share: checks of settings, seeds, events, and the wish to stop."""
