"""What agents find on this host: plugins, skills and layers of configuration (`docs/protocol.md`,
"Environment and discovery").

Nothing here decides what applies: a client does. Files are read through `Files`, so a request with a sandbox
finds what its sandbox may read.
"""
