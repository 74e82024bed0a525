"""Environments that are served by OpenEnv."""
