"""`execclient.integrations.pydantic_ai`."""
