"""OpenAI's responses: how a request is read, and how an answer is written."""
