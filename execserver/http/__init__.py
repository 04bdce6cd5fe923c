"""HTTP requests that the executor makes for clients. Imports nothing: the client library takes 50 ms to load,
and most daemons never make a request.
"""
