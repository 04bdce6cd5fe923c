"""The protocol of a relay, as executors and clients know it: keys, Noise, frames, records, registry."""
