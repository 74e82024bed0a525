"""The model as the loss sees it: micro-batches in, log-probabilities of action tokens out."""
