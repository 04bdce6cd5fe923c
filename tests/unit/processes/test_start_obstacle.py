"""Why a start failed: files that a command has made up are looked at without harm."""

from __future__ import annotations

import errno
import os
import resource
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from execserver.processes.start_obstacle import find_obstacle, require_interpreter, require_lengths

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


def too_long(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        require_lengths(argv, environment)
    except OSError as error:
        assert error.errno == errno.E2BIG  # noqa: PT017 - no other error is raised
        return True
    return False


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ([], {}),
        (["x" * 131071], {}),
        (["x" * 131072], {}),
        (["\u20ac" * 43690], {}),
        (["\u20ac" * 43691], {}),
        ([], {"LONG": "x" * 131066}),
        ([], {"LONG": "x" * 131067}),
        (["x"] * 200_000, {}),
        (["x"] * 220_000, {}),
        (["x" * 100_000] * 20, {}),
        (["x" * 100_000] * 21, {}),
        (["x" * 100_000] * 10, {f"V{number}": "x" * 100_000 for number in range(12)}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_lengths_are_refused_where_the_kernel_refuses_them(
    arguments: list[str], variables: dict[str, str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, hard))
    argv, environment = ["/bin/true", *arguments], {"PATH": os.environ["PATH"], **variables}
    try:
        refused = too_long(argv, environment)
        try:
            assert not subprocess.run(argv, env=environment, check=False, timeout=60).returncode
        except OSError as error:
            assert (error.errno, refused) == (errno.E2BIG, True)  # noqa: PT017 - or it does not raise
        else:
            assert not refused
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
