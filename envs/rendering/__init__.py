"""Messages to tokens and back, for one tokenizer and its chat template."""
