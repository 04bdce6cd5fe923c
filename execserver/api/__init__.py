"""The handlers: a thin module for each method family. Only the server imports this package."""
