"""Recording an episode in tokens: each of its contexts, and the trajectory that they become."""
