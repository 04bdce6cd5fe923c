"""The transport's side of a connection, without a transport."""

from __future__ import annotations

import json
from collections.abc import Sequence


class OpenChannel:
    """A peer that takes everything at once."""

    peer = "test"
    kind = "unix"
    peer_proof = key_fingerprint = None
    parse_error_prefix = ""
    max_reply_bytes = None
    utf8_is_fatal = False
    presumes_json_rpc = False
    unsent = progress = 0
    ended = False


def id_of(parts: Sequence[bytes]) -> int:
    """The id of an answer, given in pieces."""
    number: int = json.loads(b"".join(parts))["id"]
    return number
