"""Executors behind any firewall: the encrypted channel, the relay between its ends, and our executor's end.

Pure, for everybody: `keys`, `noise`, `frames`, `records`, `contract`, `printable`. For both peers:
`registry_client`, `dial`, `outgoing`, `key_files`. The executor's: `executor`, `link`, `admission`,
`stream_channel`, `identity`, `client_list`. The rest is the relay's own program.
"""
