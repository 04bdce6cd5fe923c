"""The protocol of execserver, as both sides know it: messages, errors, limits, path URIs."""
