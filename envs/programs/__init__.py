"""Programs that own their loop, as environments: they ask what they take for a model server."""
