"""Rules, approvals and sandboxes for commands that a model asks for."""
