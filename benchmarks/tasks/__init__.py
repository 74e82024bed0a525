"""Tasks of the benchmark `learning.py`, each a file that a user could have written."""
