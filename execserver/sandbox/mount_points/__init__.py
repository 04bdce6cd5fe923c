"""Mount points that sandboxes need and workspaces lack: they are created, shared and removed."""
