"""`execserver mcp`, its hosts, and MCP servers on another machine."""
