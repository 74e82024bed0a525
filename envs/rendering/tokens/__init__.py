"""Text to token ids, where untrusted text never becomes an added token."""
