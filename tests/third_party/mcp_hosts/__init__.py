"""Hosts that others wrote, with `execserver mcp` as their server: the inspector of MCP, and Codex.

They run in the environment `.integrations/mcp`, beside `tests/third_party/mcp`, since they wait for minutes.
"""
