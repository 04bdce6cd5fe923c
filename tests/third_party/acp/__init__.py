"""`execclient.integrations.acp`."""
