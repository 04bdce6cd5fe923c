"""A program at a terminal that tries what output can do to the terminal, and counts what is typed into it."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty

SECONDS = 3.0
"""How long it waits for input."""

QUERIES = (
    *(b"\x1b[c", b"\x1b[>c", b"\x1b[=c", b"\x1b[5n", b"\x1b[6n", b"\x1b[?6n", b"\x1b[>q", b"\x1b[?u"),
    *(b"\x1b[18t", b"\x1b[21t", b"\x1b[14t", b"\x1b[?1$p", b"\x1b[4$p", b"\x1b[?996n", b"\x05", b"\x1bZ"),
    *(b"\x1bP$qm\x1b\\", b"\x1bP+q544e\x1b\\"),
    *(b"\x1b]4;1;?\x07", b"\x1b]10;?\x07", b"\x1b]11;?\x1b\\", b"\x1b]12;?\x07"),
)
"""Sequences that a terminal answers, as if the answer were typed."""

ACTS = (
    b"\x1b]52;c;cm0gLXJmIC8=\x07",  # the clipboard
    b"\x1b]52;c;?\x07",
    b"\x1b]0;hostile title\x07",
    b"\x1b]2;hostile title\x1b\\",
    b"\x1b]8;;javascript:alert(1)\x1b\\click here\x1b]8;;\x1b\\\r\n",
    b"\x1b]8;;http://127.0.0.1:1/\x1b\\and here\x1b]8;;\x1b\\\r\n",
    b"http://127.0.0.1:1/plain\r\n",
    b"\x1b[?1004h\x1b[?1003h\x1b[?1006h",  # reports of focus and mouse
    b"\x1b[8;1;1t\x1b[3;0;0t\x1b[2t",  # the window
    b"</script></pre><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\r\n",
    b"\x1b]1337;File=inline=1:aGk=\x07",
    b"\x1b]777;notify;a;b\x07",
    b"\x1b]9;notified\x07",
    b"\x1b_Ga=T,f=100;aGk=\x1b\\",
    b"\x1b#8\x1b[2J\x1b[H",
    b"\xff\xfe\xc0\xaf",
    b"\x1b[999999999999C\x1b[" + b"9;" * 5000 + b"m",
)


def main() -> None:
    mode = termios.tcgetattr(0)
    tty.setraw(0)
    out = sys.stdout.buffer
    out.write(b"".join((*QUERIES, *ACTS, *QUERIES, b"</script><b id=hacked>bold</b>\r\n")))
    out.flush()
    got = b""
    while select.select([0], [], [], SECONDS)[0]:
        got += os.read(0, 4096)
    out.write(b"\x1b[0m\x1b[?1004l\x1b[?1003l\x1b[?1006lgot %d bytes\r\n" % len(got))
    out.flush()
    termios.tcsetattr(0, termios.TCSANOW, mode)


if __name__ == "__main__":
    main()
