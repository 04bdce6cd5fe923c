"""Input lines that are too long for a terminal.

In canonical mode the kernel collects a line for the program, and drops what goes beyond 4,095 bytes, without
an error. A line is counted anew from every character that may end, erase or flush it, so that no line counts
as too long which the kernel would take whole.
"""

from __future__ import annotations

import functools
import re
import termios

from execprotocol.errors import InvalidRequest
from execprotocol.limits import MAX_TERMINAL_LINE_BYTES

_LINE_FLAGS = 3
_CONTROL_CHARACTERS = 6

_ENDS = (b"\n", b"\r")


@functools.lru_cache(16)
def _special(control: bytes) -> re.Pattern[bytes]:
    """The characters that may end, erase or flush a line of a terminal with these control characters."""
    return re.compile(b"[\r\n%b]" % re.escape(control.replace(b"\0", b"")))


def begun_line(terminal: int, begun: int, data: bytes) -> int:
    """Check input for a terminal, which is about to be written.

    Args:
        terminal: a descriptor of either side.
        begun: the bytes of the last line before, as this function has returned them; 0 if they are not known.
        data: the input.

    Returns:
        The bytes of the last line with this input; 0 if the terminal is not in canonical mode.

    Raises:
        InvalidRequest: the terminal is in canonical mode, and would drop a part of a line.
    """
    if begun + len(data) <= MAX_TERMINAL_LINE_BYTES + 1 and data[-1:] in _ENDS:
        return 0
    try:
        attributes = termios.tcgetattr(terminal)
    except termios.error:
        return 0  # no process has it open any more
    if not attributes[_LINE_FLAGS] & termios.ICANON:
        return 0
    first, *more = map(len, _special(b"".join(attributes[_CONTROL_CHARACTERS])).split(data))
    lines = [begun + first, *more]
    longest = max(lines)
    if longest > MAX_TERMINAL_LINE_BYTES:
        error = InvalidRequest(
            f"the input has a line of {longest} bytes, and the terminal takes {MAX_TERMINAL_LINE_BYTES}: "
            "nothing was written",
            name="line_too_long",
            field="chunk",
        )
        error.details["reason"] = (
            "in canonical mode (`stty icanon`) the kernel drops the rest of a longer line: start the command "
            "with a pipe instead of a terminal, write the text to a file, or break the line"
        )
        raise error
    return lines[-1]
