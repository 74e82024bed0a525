"""Where untrusted code runs. No backend is here yet, so this package exports no name."""
