"""Text to token ids without an added token that the text only spells."""
