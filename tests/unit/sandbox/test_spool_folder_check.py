"""What `doctor` says of the place for output, with faults that are caused where a test can."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.sandbox.diagnostics import doctor
from tests.sandbox_user import NOBODY

ROOT = Path(__file__).parents[3]
SMALL = 1 << 20


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def spool(state: Path) -> Path:
    folder = state / "spool"
    folder.mkdir(mode=0o700)
    return folder


def tree(folder: Path) -> list[tuple[str, int]]:
    """All that is there, with modes."""
    return [(str(path), path.lstat().st_mode) for path in sorted(folder.rglob("*"))]


def test_a_spool_that_works_is_told_by_its_path_and_left_as_it_was(state: Path, spool: Path) -> None:
    before = tree(state), len(os.listdir("/proc/self/fd"))
    check = doctor.spool_folder_check(str(state), SMALL)
    assert (check.status, check.detail) == ("ok", str(spool)), check
    assert (tree(state), len(os.listdir("/proc/self/fd"))) == before


def test_a_spool_that_is_missing_is_not_made(state: Path) -> None:
    check = doctor.spool_folder_check(str(state), SMALL)
    assert (check.status, check.detail) == ("ok", f"{state}/spool, made at the start"), check
    assert tree(state) == []


def test_without_a_state_folder_output_is_kept_in_memory() -> None:
    check = doctor.spool_folder_check(None, SMALL)
    assert (check.status, check.fix) == ("warning", "see state folder")
    assert "kept in memory" in check.detail


def test_a_spool_that_is_a_link_is_refused_and_not_followed(state: Path, tmp_path: Path) -> None:
    (state / "spool").symlink_to(tmp_path / "elsewhere")
    check = doctor.spool_folder_check(str(state), SMALL)
    assert check.status == "warning"
    assert (check.cause, check.fix) == (f"folder {state}/spool is a symbolic link", "remove it")
    assert not (tmp_path / "elsewhere").exists()


def test_a_spool_that_is_no_folder_is_told_with_a_way_out(state: Path) -> None:
    (state / "spool").touch()
    check = doctor.spool_folder_check(str(state), SMALL)
    assert check.status == "warning"
    assert check.cause == f"folder {state}/spool: {os.strerror(errno.ENOTDIR)}"
    assert "--spool-dir" in check.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_spool_of_another_user_is_told_with_both(state: Path, spool: Path) -> None:
    os.chown(spool, NOBODY, NOBODY)
    check = doctor.spool_folder_check(str(state), SMALL)
    assert check.cause == f"folder {spool} belongs to nobody (uid {NOBODY}), not to us, root (uid 0)"
    assert check.status == "warning"


def test_less_room_than_output_may_take_is_a_warning_with_both_figures(state: Path, spool: Path) -> None:
    check = doctor.spool_folder_check(str(state), 1 << 60)
    assert (check.status, check.detail) == ("warning", str(spool))
    assert check.cause.endswith(" and all output may take 1,099,511,627,776 MiB (--spool-max-bytes)")
    assert "lower --spool-max-bytes" in check.fix


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """As on a disk without room for a byte (EFBIG in the place of ENOSPC; Python ignores SIGXFSZ)."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_disk_that_takes_no_byte_is_told_with_the_reason(state: Path, spool: Path) -> None:
    with no_file_may_grow():
        check = doctor.spool_folder_check(str(state), SMALL)
    assert check.status == "warning"
    assert "kept in memory" in check.detail
    assert check.cause == f"nothing can be written in {spool}: {os.strerror(errno.EFBIG)}"


def test_a_file_system_on_which_nothing_can_be_made_is_told_with_the_reason(state: Path, spool: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from execserver.sandbox.diagnostics.doctor import spool_folder_check\n"
        "print(spool_folder_check(sys.argv[2], 1).cause)"
    )
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = 'mount -t tmpfs -o ro,mode=700 none "$1/spool"; shift; exec "$@"'
    before = [*unshare, "sh", "-ec", mount, "sh", str(state)]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    done = subprocess.run(
        [*before, sys.executable, "-c", program, str(ROOT), str(state)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"nothing can be written in {spool}: {os.strerror(errno.EROFS)}\n"


def test_a_file_system_without_splice_is_a_warning_that_says_what_can_be_lost(
    state: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "splice", refuse)
    check = doctor.spool_folder_check(str(state), SMALL)
    assert (check.status, check.detail) == ("warning", str(spool))
    assert "can lose 64 KiB a process" in check.cause
    assert "--spool-dir" in check.fix
