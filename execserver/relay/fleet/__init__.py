"""Relays that share a NATS cluster; imported only by the `--nats` flags (the extra `fleet`)."""
