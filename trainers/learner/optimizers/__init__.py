"""What updates weights: optimizers over float32 master weights, alone or with DeepSpeed."""
