"""The audit folder: its chain, and what is found when it is not as it was written."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from execprotocol.errors import InternalError
from execserver.audit.chain import STATE_NAME, AuditFault, Link, file_name, verify
from execserver.audit.trail import (
    MAX_LINE_BYTES,
    AuditError,
    AuditTrail,
    check_folder,
    check_space,
)

BIG = 1 << 30


def write(trail: AuditTrail, *methods: str) -> None:
    for method in methods:
        trail.begin()
        trail.end({"method": method})


def opened(folder: Path, max_bytes: int = BIG, *, stop: bool = True) -> AuditTrail:
    trail = AuditTrail(str(folder), max_bytes, stop=stop)
    trail.open(wait=False)
    return trail


def written(folder: Path, count: int = 5, max_bytes: int = BIG) -> None:
    trail = opened(folder, max_bytes)
    write(trail, *(f"m{number}" for number in range(1, count + 1)))
    trail.close()


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def path(folder: Path) -> Path:
    """The first file."""
    return folder / file_name(1)


def test_each_act_is_a_line_with_the_hash_of_the_one_before(folder: Path, path: Path) -> None:
    written(folder)

    acts = [json.loads(line) for line in lines_of(path)]

    assert [(act["n"], act["method"]) for act in acts] == [(n, f"m{n}") for n in range(1, 6)]
    assert [act["prev"] for act in acts] == ["0" * 64, *(act["hash"] for act in acts[:-1])]
    assert verify(str(folder)) == (1, Link(5, acts[-1]["hash"]))
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert path.stat().st_blocks * 512 < 1 << 16, "the reservation is free again"


def test_the_next_server_continues_the_chain(folder: Path) -> None:
    written(folder, 2)
    written(folder, 2)
    assert verify(str(folder)).last.n == 4


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
    folder: Path, path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    written(folder)
    path.write_bytes(b"".join(change(lines_of(path))))

    with pytest.raises(AuditFault) as fault:
        verify(str(folder))

    assert fault.value.line == (4 if change is doubled else 3)


def test_a_line_that_was_written_anew_with_its_hash_is_found_by_the_next(
    folder: Path, path: Path, tmp_path: Path
) -> None:
    written(folder)
    other = tmp_path / "other"
    trail = opened(other)
    write(trail, "m1", "m2", "another")
    trail.close()
    forged = lines_of(path)
    forged[:3] = lines_of(other / path.name)
    path.write_bytes(b"".join(forged))

    with pytest.raises(AuditFault, match="line 4: the line before it was written anew"):
        verify(str(folder))


@pytest.mark.parametrize("kept", range(5))
def test_a_shortened_file_is_found_at_its_end(folder: Path, path: Path, kept: int) -> None:
    written(folder)
    path.write_bytes(b"".join(lines_of(path)[:kept]))

    with pytest.raises(AuditFault, match=f"acts {kept + 1} to 5 are missing at the end") as fault:
        verify(str(folder))
    assert fault.value.line == kept + 1

    written(folder, 1)  # by a server that finds it so
    with pytest.raises(AuditFault, match=f"acts {kept + 1} to 5 are missing before it") as fault:
        verify(str(folder))
    assert fault.value.line == kept + 1


def test_added_lines_and_a_missing_state_are_found(folder: Path, path: Path, tmp_path: Path) -> None:
    written(folder)
    longer = tmp_path / "longer"
    shutil.copytree(folder, longer)
    written(longer, 2)
    state = (folder / STATE_NAME).read_bytes()
    shutil.copy(longer / path.name, path)
    with pytest.raises(AuditFault, match="acts from 7 on were added") as fault:
        verify(str(folder))
    assert fault.value.line == 7

    path.write_bytes(b"".join(lines_of(path)[:6]))
    assert verify(str(folder)).last.n == 6, "as if the server had been killed before the state"
    (folder / STATE_NAME).unlink()
    with pytest.raises(AuditFault, match="end is missing"):
        verify(str(folder))
    (folder / STATE_NAME).write_bytes(state.replace(b'"n":5', b'"n":x'))
    with pytest.raises(AuditFault, match="is no state"):
        verify(str(folder))


def test_a_line_that_is_cut_off_is_found_and_removed_by_the_next_server(folder: Path, path: Path) -> None:
    written(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(AuditFault, match="line 5: the line is cut off"):
        verify(str(folder))

    path.write_bytes(whole + b'{"n":6,"at":1')
    written(folder, 1)

    assert verify(str(folder)).last.n == 6


def test_a_file_of_the_largest_size_is_followed_by_another(folder: Path, tmp_path: Path) -> None:
    written(folder, 20, max_bytes=600)
    names = sorted(each.name for each in folder.iterdir() if each.name != STATE_NAME)
    assert len(names) > 4
    assert names[0] == "000000000001.jsonl"
    assert verify(str(folder)) == (1, verify(str(folder / names[-1])).last)

    (folder / names[0]).unlink()  # moved elsewhere
    assert verify(str(folder)).first > 1
    (folder / names[2]).unlink()
    with pytest.raises(AuditFault, match="are missing before it"):
        verify(str(folder))


def test_a_server_that_was_killed_with_a_new_file_before_its_first_line_is_continued(folder: Path) -> None:
    written(folder, 3)
    (folder / file_name(4)).touch(0o600)
    assert verify(str(folder)).last.n == 3
    written(folder, 2)
    assert len(lines_of(folder / file_name(4))) == 2
    assert verify(str(folder)).last.n == 5


def test_a_long_act_does_not_keep_files_from_being_followed(folder: Path) -> None:
    trail = opened(folder, 600)
    trail.begin()
    write(trail, *"abcdefghij")
    trail.end({"method": "long"})
    trail.close()
    assert len(list(folder.iterdir())) > 3
    assert verify(str(folder)).last.n == 11


def test_a_line_that_would_be_too_long_keeps_what_happened(folder: Path, path: Path) -> None:
    trail = opened(folder)
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


@pytest.mark.parametrize("max_bytes", [BIG, 1])
def test_on_a_full_disk_no_act_begins_and_those_that_have_begun_are_written(
    disk: Path, max_bytes: int
) -> None:
    trail = opened(disk / "audit", max_bytes)
    trail.begin()
    begun = 1
    with full(disk):
        with suppress(InternalError):
            for begun in range(1, 1000):  # noqa: B007
                trail.begin()
        with pytest.raises(InternalError, match=r"No space left on device.*nothing is done: mend"):
            trail.begin()
        assert begun > 10
        problems = [trail.problem]
        for _ in range(begun):
            trail.end({"method": "m", "argv": ["x" * 20_000]})
    write(trail, "later")
    problems.append(trail.problem)
    assert problems == ["No space left on device", None]
    trail.close()
    assert verify(str(disk / "audit")).last.n == begun + 1


def test_a_daemon_that_only_warns_counts_the_lines_that_it_could_not_write(disk: Path) -> None:
    folder = disk / "audit"
    trail = opened(folder, stop=False)
    write(trail, "a")
    acts = 1
    with full(disk):
        last = 0
        while trail.last.n > last:  # until the last page is full
            last = trail.last.n
            write(trail, "b")
            acts += 1
        trail.close()
        trail = opened(folder, stop=False)  # the next server knows of it
        write(trail, "c", "d")
        assert trail.problem == "No space left on device"
    write(trail, "e", "f")
    trail.close()
    lines = [json.loads(line) for line in lines_of(folder / file_name(1))]
    assert [(line["method"], line.get("missed")) for line in lines[-2:]] == [("e", 3), ("f", None)]
    assert verify(str(folder)).last.n == len(lines) == acts - 1 + 2


def test_where_nothing_can_be_reserved_an_act_that_was_missed_stops_the_next_until_it_can_be_written(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts in this namespace need root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", disk], check=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        trail = opened(disk / "audit")
        write(trail, "a")
        trail.begin()
        resource.setrlimit(resource.RLIMIT_FSIZE, ((disk / "audit" / file_name(1)).stat().st_size, limits[1]))
        trail.end({"method": "b"})
        with pytest.raises(InternalError, match="File too large"):
            trail.begin()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        write(trail, "c")
        trail.close()
        lines = [json.loads(line) for line in lines_of(disk / "audit" / file_name(1))]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        subprocess.run(["umount", disk], check=True)
    assert [(line["method"], line.get("missed")) for line in lines] == [
        ("a", None),
        ("audit", 1),
        ("c", None),
    ]


def test_a_folder_that_others_can_read_and_one_in_use_are_refused(folder: Path) -> None:
    trail = opened(folder)
    with pytest.raises(AuditError, match="locked by another program"):
        opened(folder)
    trail.close()
    assert (check_folder(str(folder)), check_space(str(folder))) == (None, None)
    folder.chmod(0o755)
    with pytest.raises(AuditError, match="chmod it to 0700"):
        opened(folder)
    assert "chmod it to 0700" in str(check_folder(str(folder)))


def test_a_folder_that_cannot_be_opened_refuses_acts_until_it_can(folder: Path, path: Path) -> None:
    written(folder, 2)
    good = path.read_bytes()
    path.write_bytes(good.replace(b"m2", b"m3"))
    trail = AuditTrail(str(folder), BIG, stop=True)
    with pytest.raises(AuditError, match=f"the last line of {path.name}: the line was changed; look"):
        trail.open(wait=False)
    with pytest.raises(InternalError, match=r"the line was changed.*nothing is done"):
        trail.begin()
    warning = AuditTrail(str(folder), BIG, stop=False)
    write(warning, "undone")
    assert "the line was changed" in str(warning.problem)

    path.write_bytes(good)
    write(trail, "done")
    assert trail.problem is None
    trail.close()
    write(warning, "done")
    warning.close()
    assert [json.loads(line).get("missed") for line in lines_of(path)] == [None, None, None, 1]
    assert verify(str(folder)).last.n == 4
