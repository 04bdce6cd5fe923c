"""Connections to a server: URLs, channels, requests and responses."""
