"""`mcp:NAME`: the tools of any server that speaks the Model Context Protocol."""
