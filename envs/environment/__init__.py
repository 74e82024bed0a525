"""`Environment`: a turn in messages, the tokens around it, and the hooks of a subclass."""
