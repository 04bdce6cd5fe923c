"""JSON-RPC: codec, framing and request order without I/O, and the connection that uses them."""
