"""Episodes as they are written on the disk: columns, JSON text, and the text of each token."""
