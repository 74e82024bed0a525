"""Adapters: what other packages play, as environments; each is named by a scheme of its own."""
