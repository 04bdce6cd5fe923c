"""JSON-RPC: a pure engine (envelope, framing, request order) and the connection that runs it."""
