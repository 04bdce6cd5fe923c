"""Why a start failed: files that a command has made up are looked at without harm."""

from __future__ import annotations

import errno
import resource
import struct
from pathlib import Path

import pytest

from execserver.processes.start_obstacle import find_obstacle, require_interpreter

GIB = 1 << 30


def elf(path: Path, *, table: int = 64, size: int = 56, count: int = 1, segment: bytes = b"") -> str:
    """A file that says that it is a program of 64 bits, with a large hole at its end."""
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 32, table)
    struct.pack_into("<HH", head, 54, size, count)
    with path.open("wb") as file:
        file.write(head + segment)
        file.truncate(5 * GIB)
    path.chmod(0o755)
    return str(path)


def loader_at(offset: int, length: int) -> bytes:
    return struct.pack("<IIQQQQQQ", 3, 0, offset, 0, 0, length, 0, 0)


@pytest.mark.parametrize(
    "made_up",
    [
        {"size": 65535, "count": 65535, "table": 0},
        {"size": 56, "count": 65535},
        {"size": 0, "count": 5},
        {"size": 1, "count": 65535},
        {"table": 2**64 - 1},
        {"table": 2**63},
        {"segment": loader_at(2**64 - 1, 20)},
        {"segment": loader_at(0, 2**64 - 1)},
    ],
    ids=str,
)
def test_a_made_up_program_has_no_loader_and_takes_no_memory(tmp_path: Path, made_up: dict[str, int]) -> None:
    program = elf(tmp_path / "program", **made_up)  # type: ignore[arg-type]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        try:
            require_interpreter(program, "/", lambda _: True)
        except FileNotFoundError as missing:
            assert made_up.get("segment"), missing  # noqa: PT017 - the loader it names is not there
    found = find_obstacle(OSError(errno.ENOEXEC, "Exec format error"), [program], "/", {})
    assert found is None or found.path is not None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "in KiB"


def test_the_loader_of_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    segment = loader_at(64 + 56, 16) + b"/no/such/loader\0"
    program = elf(tmp_path / "program", segment=segment)
    with pytest.raises(FileNotFoundError) as raised:
        require_interpreter(program, "/", lambda _: True)
    assert raised.value.filename == "/no/such/loader"
