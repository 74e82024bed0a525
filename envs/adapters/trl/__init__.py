"""What is written for TRL: environments, lists of tools and reward functions, as they are."""
