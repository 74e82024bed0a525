"""What `gymnast.agents.VLLMAgent` is made of: vLLM servers, and what is said to them."""
