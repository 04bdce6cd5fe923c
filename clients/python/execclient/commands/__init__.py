"""The commands of the client: `execserver run`, `attach`, `ps`, `logs`, `kill`, `cp`, `patch`, `policy` and
`completion`.
"""
