"""`execserver mcp`: the tools of `execclient.tools` for a host of the Model Context Protocol.

How a host is configured: `docs/how-to/mcp.md`.
"""
