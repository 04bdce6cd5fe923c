"""The handlers: one thin file per method family. Only the server's wiring imports this package."""
