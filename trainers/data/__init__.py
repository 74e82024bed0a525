"""Rows: read from files, mapped, ordered, and split into training and evaluation rows."""
