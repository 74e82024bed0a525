"""Parts of the command line: what its commands share, and the commands about sandboxes."""
