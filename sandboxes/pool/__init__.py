"""Boxes that are kept ready: the pool, its stock, its waiting line."""
