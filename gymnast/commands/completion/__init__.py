"""What shells complete after Tab: files, names of environments, and settings of a run."""
