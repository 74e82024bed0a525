"""`Environment`: one turn in messages, the tokens around it, and the hooks that a subclass overrides."""
