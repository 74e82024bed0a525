"""Where untrusted code runs. No backend has landed yet, so this package exports no name."""
