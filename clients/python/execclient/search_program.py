"""The programs that `execclient.search` runs, ripgrep and GNU grep: their script, and their output.

Apart from `search.py`, since nothing here does I/O, and nothing there depends on a program's format.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from pybase64 import b64decode

from execclient import arguments

NO_PROGRAM, NOT_VALID, SOME_UNREAD = 127, 65, 2
"""Exit codes: the first two are those of the script, the third is that of both programs."""

_PLAIN_GLOB = re.compile(r"[\w.*?+@=~-]+", re.ASCII)
"""Globs that mean the same to rg, grep and wcmatch, but for a dot at the beginning of a name."""

Record = tuple[bytes, int, bytes | None]
"""A path, a line number, and the line without its end; no line for a file that is found to be binary."""


def search_script(
    pattern: str,
    name: str,
    glob: str | None,
    exclude_dirs: Iterable[str],
    *,
    regex: bool,
    ignore_case: bool,
) -> str:
    """A shell script that prints the name of the program and then the output of the search.

    Args:
        pattern: to search for.
        name: a name in the working directory, or `.`.
        glob: of the files. A program only gets one that matches the same names everywhere, or more.
        exclude_dirs: names of folders.
        regex: whether the pattern is a regular expression.
        ignore_case: whether case does not matter.
    """
    if "\n" in arguments.text(pattern, "pattern"):
        raise ValueError("pattern has a newline, and lines are searched one by one")
    case = ["-i"] if ignore_case else []
    rg = ["rg", "--no-config", "--no-ignore", "--hidden", "--no-unicode", "--encoding=none", *case]
    rg += [] if regex else ["-F"]
    grep = ["grep", "-rnHI", "--null", "--color=never", "-E" if regex else "-F", *case]
    names = None if glob is None else glob.rpartition("/")[2]
    if names and _PLAIN_GLOB.fullmatch(names) and "**" not in names:
        rg.append(f"--glob={names}")
        grep.append(f"--include={names}")
    for folder in exclude_dirs:
        if not arguments.text(folder, "exclude_dirs") or "/" in folder:
            raise ValueError(f"exclude_dirs are names of folders, not {folder!r}")
        rg.append(f"--glob=!{folder}/")
        grep.append(f"--exclude-dir={folder}")
    what = ["-e", pattern, "--"]
    target = [*what, "." if name == "." else f"./{name}"]
    parts = []
    for program, options in ((rg, ["--json"]), (grep, [])):
        # Tried first, so that a wrong pattern or option is told from a file that cannot be read.
        tried = shlex.join([*program, "-q", *what, "/dev/null"])
        parts.append(
            f"if command -v {program[0]} >/dev/null 2>&1; then echo {program[0]}; {tried}; "
            f"[ $? -le 1 ] || exit {NOT_VALID}; exec {shlex.join([*program, *options, *target])}; fi"
        )
    return "; ".join([*parts, f"exit {NO_PROGRAM}"])


class SearchOutput:
    """Parses the output as it arrives: a line with the program's name, then what the program prints.

    That is `rg --json`, or `grep -nH --null`: the path, a NUL, the number, a colon and the line.
    """

    def __init__(self) -> None:
        self.program = ""
        self.begun = 0
        """Bytes of a record that has not ended."""
        self._begun: list[bytes] = []

    def add(self, data: bytes) -> Iterator[Record]:
        """The records that end in these bytes."""
        self._begun.append(data)
        self.begun += len(data)
        if b"\n" not in data:
            return
        output = b"".join(self._begun)
        if not self.program:
            name, _, output = output.partition(b"\n")
            self.program = name.decode()
        yield from self._json(output) if self.program == "rg" else self._plain(output)

    def _keep(self, rest: bytes) -> None:
        self._begun, self.begun = [rest], len(rest)

    def _json(self, output: bytes) -> Iterator[Record]:
        *lines, rest = output.split(b"\n")
        self._keep(rest)
        for line in lines:
            message = msgspec.json.decode(line)
            data = message["data"]
            if message["type"] == "match":
                yield _bytes(data["path"]), data["line_number"], _line(_bytes(data["lines"]))
            elif message["type"] == "end" and data["binary_offset"] is not None:
                yield _bytes(data["path"]), 0, None

    def _plain(self, output: bytes) -> Iterator[Record]:
        # A path may have a newline, and a line has no NUL.
        begin = 0
        while (name_end := output.find(b"\0", begin)) >= 0:
            end = output.find(b"\n", name_end)
            if end < 0:
                break
            number, _, text = output[name_end + 1 : end].partition(b":")
            yield output[begin:name_end], int(number), _line(text)
            begin = end + 1
        self._keep(output[begin:])


def _bytes(value: dict[str, Any]) -> bytes:
    """A text of rg, which has those that are not UTF-8 in base64."""
    return value["text"].encode() if "text" in value else b64decode(value["bytes"])


def _line(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")
