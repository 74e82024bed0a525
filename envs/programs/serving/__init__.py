"""The endpoint that programs speak to, over HTTP on this machine's loopback."""
