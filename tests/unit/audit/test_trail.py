"""The audit file: its chain, and what is found when it is not as it was written."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from execprotocol.errors import InternalError
from execserver.audit.chain import AuditFault, Link, verify
from execserver.audit.trail import MAX_LINE_BYTES, AuditError, AuditTrail

BIG = 1 << 30


def write(trail: AuditTrail, *methods: str) -> None:
    for method in methods:
        trail.begin()
        trail.end({"method": method})


def written(path: Path, count: int = 5, max_bytes: int = BIG) -> None:
    trail = AuditTrail(str(path), max_bytes, stop=True)
    write(trail, *(f"m{number}" for number in range(1, count + 1)))
    trail.close()


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def test_each_act_is_a_line_with_the_hash_of_the_one_before(path: Path) -> None:
    written(path)

    acts = [json.loads(line) for line in lines_of(path)]

    assert [(act["n"], act["method"]) for act in acts] == [(n, f"m{n}") for n in range(1, 6)]
    assert [act["prev"] for act in acts] == ["0" * 64, *(act["hash"] for act in acts[:-1])]
    assert verify(str(path)) == (1, Link(5, acts[-1]["hash"]))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 < 1 << 16, "the reservation is free again"


def test_the_next_server_continues_the_chain(path: Path) -> None:
    written(path, 2)
    written(path, 2)
    assert verify(str(path)).last.n == 4


def changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b"m3", b"m9"), *lines[3:]]


def removed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], *lines[3:]]


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1], lines[3], lines[2], lines[4]]


def doubled(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], *lines[2:]]


def foreign(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], b"x\n", *lines[3:]]


@pytest.mark.parametrize("change", [changed, removed, swapped, doubled, foreign])
def test_a_changed_file_is_found_at_its_line(
    path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    written(path)
    path.write_bytes(b"".join(change(lines_of(path))))

    with pytest.raises(AuditFault) as fault:
        verify(str(path))

    assert fault.value.line == (4 if change is doubled else 3)


def test_a_line_that_was_written_anew_with_its_hash_is_found_by_the_next(path: Path, tmp_path: Path) -> None:
    written(path)
    other = tmp_path / "other"
    trail = AuditTrail(str(other), BIG, stop=True)
    write(trail, "m1", "m2", "another")
    trail.close()
    forged = lines_of(path)
    forged[:3] = lines_of(other)
    path.write_bytes(b"".join(forged))

    with pytest.raises(AuditFault, match="line 4: the line before it was written anew"):
        verify(str(path))


@pytest.mark.parametrize("kept", range(5))
def test_a_shortened_file_is_found_at_its_end(path: Path, kept: int) -> None:
    written(path)
    path.write_bytes(b"".join(lines_of(path)[:kept]))

    with pytest.raises(AuditFault, match=f"acts {kept + 1} to 5 are missing at the end") as fault:
        verify(str(path))
    assert fault.value.line == kept + 1

    written(path, 1)  # by a server that finds it so
    if not kept:
        assert verify(str(path)).first == 6, "as if the earlier file had been moved elsewhere"
        return
    with pytest.raises(AuditFault, match=f"acts {kept + 1} to 5 are missing before it") as fault:
        verify(str(path))
    assert fault.value.line == kept + 1


def test_a_line_that_is_cut_off_is_found_and_removed_by_the_next_server(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(AuditFault, match="line 5: the line is cut off"):
        verify(str(path))

    path.write_bytes(whole + b'{"n":6,"at":1')
    written(path, 1)

    assert verify(str(path)).last.n == 6


def test_a_file_of_the_largest_size_is_renamed_and_the_chain_goes_on(path: Path, tmp_path: Path) -> None:
    written(path, 20, max_bytes=600)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert len(names) > 4
    assert "audit.000000000001" in names
    assert verify(str(path)).first == 1
    assert verify(str(path)).last.n == 20

    (tmp_path / names[2]).unlink()

    with pytest.raises(AuditFault, match="are missing before it"):
        verify(str(path))


def test_a_line_that_would_be_too_long_keeps_what_happened(path: Path) -> None:
    trail = AuditTrail(str(path), BIG, stop=True)
    trail.begin()
    trail.end({"method": "process/start", "outcome": "ok", "argv": ["x" * MAX_LINE_BYTES]})
    trail.close()
    (act,) = (json.loads(line) for line in lines_of(path))
    assert (act["method"], act["outcome"], act["cut"], "argv" in act) == ("process/start", "ok", True, False)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """A disk without any room."""
    with open(disk / "filler", "wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        yield
    (disk / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounts in this namespace need root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_on_a_full_disk_no_act_begins_and_those_that_have_begun_are_written(disk: Path) -> None:
    trail = AuditTrail(str(disk / "audit"), BIG, stop=True)
    trail.begin()
    begun = 1
    with full(disk):
        with suppress(InternalError):
            for begun in range(1, 1000):  # noqa: B007
                trail.begin()
        with pytest.raises(InternalError, match=r"No space left on device.*nothing is done: make room"):
            trail.begin()
        assert begun > 10
        for _ in range(begun):
            trail.end({"method": "m", "argv": ["x" * 20_000]})
    write(trail, "later")
    trail.close()
    assert verify(str(disk / "audit")).last.n == begun + 1


def test_a_daemon_that_only_warns_counts_the_lines_that_it_could_not_write(disk: Path) -> None:
    trail = AuditTrail(str(disk / "audit"), BIG, stop=False)
    write(trail, "a")
    acts = 1
    with full(disk):
        last = 0
        while trail.last.n > last:  # until the last page is full
            last = trail.last.n
            write(trail, "b")
            acts += 1
        write(trail, "c", "d")
    write(trail, "e", "f")
    trail.close()
    lines = [json.loads(line) for line in lines_of(disk / "audit")]
    assert [(line["method"], line.get("missed")) for line in lines[-2:]] == [("e", 3), ("f", None)]
    assert verify(str(disk / "audit")).last.n == len(lines) == acts - 1 + 2


def test_a_file_that_others_can_read_and_one_in_use_are_refused(path: Path) -> None:
    trail = AuditTrail(str(path), BIG, stop=True)
    with pytest.raises(AuditError, match="another daemon"):
        AuditTrail(str(path), BIG, stop=True)
    trail.close()
    path.chmod(0o644)
    with pytest.raises(AuditError, match="chmod 600"):
        AuditTrail(str(path), BIG, stop=True)
    path.unlink()
    path.mkdir()
    with pytest.raises(AuditError):
        AuditTrail(str(path), BIG, stop=True)
