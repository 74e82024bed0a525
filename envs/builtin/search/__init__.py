"""Search: questions about documents, which a policy searches and reads."""
