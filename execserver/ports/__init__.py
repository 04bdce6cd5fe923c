"""`port/*`: the ports that processes listen on, and byte streams to them (`docs/protocol.md`, "Ports")."""
