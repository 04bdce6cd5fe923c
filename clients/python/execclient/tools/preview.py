"""The beginning of an output, small enough for logs and spans."""

from __future__ import annotations

PREVIEW_BYTES = 2048
"""Collectors cut or drop attributes that are much longer; the notice is in it."""

PREVIEW_LINES = 50
"""As many as somebody who looks at a log wants to pass; the notice is in it."""

TRUNCATION_NOTICE = "[... telemetry preview truncated ...]"
"""The last line of a preview that is not all; searched for by dashboards, so it stays as it is."""


def preview(text: str) -> str:
    """The text itself, or as much of its beginning as fits together with a notice on a line of its own.

    At most 2048 bytes of UTF-8 and 50 lines; no character is cut.
    """
    data = text.encode("utf-8", "replace")
    lines = text.split("\n")
    if len(data) <= PREVIEW_BYTES and len(lines) - (lines[-1] == "") <= PREVIEW_LINES:
        return text
    room = PREVIEW_BYTES - len(TRUNCATION_NOTICE) - 1
    start = data[:room].decode("utf-8", "ignore")
    # Joined with "\n", a text of n lines has n - 1 of them; the notice needs a line as well.
    kept = "\n".join(start.split("\n")[: PREVIEW_LINES - 1]).removesuffix("\n")
    return f"{kept}\n{TRUNCATION_NOTICE}" if kept else TRUNCATION_NOTICE
