"""The parts of the command line: what its commands share, and those about sandboxes."""
