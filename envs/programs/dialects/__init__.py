"""The dialects of model servers: what a request means, and how its answer is written."""
