"""What a run was made with: versions, machine and inputs, as environment.json tells it."""
