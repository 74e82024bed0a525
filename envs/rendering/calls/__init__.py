"""The kinds of payload in which tool calls are written, and the markup and values in them."""
