"""Rows: read from files, mapped, put in order, and held out."""
