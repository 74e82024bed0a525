"""What every sandbox is asked and answers, its limits, and what stands before another sandbox."""
