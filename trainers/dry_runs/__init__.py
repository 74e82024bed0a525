"""What a dry run finds: prompts as the policy reads them, what a step costs, and what is odd."""
