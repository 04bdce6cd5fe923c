"""Rules, approvals and sandboxes for the commands of a model."""
