"""Loading models and tokenizers by name: hub ids, folders, packages, tiny ones."""
