"""Several relays that share a NATS cluster. What needs NATS is here, and is loaded with `--nats` only."""
