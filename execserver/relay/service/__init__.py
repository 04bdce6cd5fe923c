"""The relay: registry, rendezvous and the plain WebSocket for clients without a key."""
