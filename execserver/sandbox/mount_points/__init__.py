"""Mount points that a sandbox needs and a workspace lacks: created, shared, removed."""
