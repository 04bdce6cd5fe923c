"""Requests that the executor makes for clients. Nothing is imported here: the client library costs
50 ms, and most daemons never make a request.
"""
