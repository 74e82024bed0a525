"""What `gymnast train` does besides training."""
