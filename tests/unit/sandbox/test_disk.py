"""Resolving paths name by name, and finding paths that a command could write to."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.sandbox.disk import replaceable_inside, resolve_path, writable_inside


def test_a_path_without_links_is_where_it_says(base: Path) -> None:
    (base / "a").write_text("")
    for path, folder in ((base, True), (base / "a", False)):
        place = resolve_path(str(path))
        assert place is not None
        assert (place.path, place.exists, place.is_folder) == (str(path), True, folder)
        assert place.missing is None
        assert place.links == ()
        assert place.status is not None
        assert place.status.st_ino == os.stat(path).st_ino


def test_the_root_is_where_it_is() -> None:
    place = resolve_path("/")
    assert place is not None
    assert (place.path, place.is_folder, place.links) == ("/", True, ())


def test_links_are_followed_and_told(base: Path) -> None:
    (base / "real" / "sub").mkdir(parents=True)
    (base / "relative").symlink_to("real")
    (base / "absolute").symlink_to(base / "relative" / "sub")
    (base / "real" / "up").symlink_to("./../absolute")
    place = resolve_path(f"{base}/relative/up")
    assert place is not None
    assert place.path == f"{base}/real/sub"
    assert place.is_folder
    assert place.links == (
        (f"{base}/relative", "real"),
        (f"{base}/real/up", "./../absolute"),
        (f"{base}/absolute", f"{base}/relative/sub"),
        (f"{base}/relative", "real"),
    )


def test_a_link_may_lead_to_the_root_and_above_it(base: Path) -> None:
    (base / "root").symlink_to("/")
    (base / "above").symlink_to("../" * 40)
    for name in ("root", "above"):
        place = resolve_path(f"{base}/{name}")
        assert place is not None
        assert (place.path, place.is_folder) == ("/", True)


@pytest.mark.parametrize(
    ("path", "where", "missing"),
    [
        ("no", "no", "no"),
        ("no/deeper/still", "no/deeper/still", "no"),
        ("real/no/x", "real/no/x", "real/no"),
        ("link/no/x", "real/no/x", "real/no"),
        ("nowhere/x", "gone/x", "gone"),
        ("file/x", "file/x", "file/x"),
    ],
)
def test_a_missing_path_is_returned_with_its_first_missing_name(
    base: Path, path: str, where: str, missing: str
) -> None:
    (base / "real").mkdir()
    (base / "file").write_text("")
    (base / "link").symlink_to("real")
    (base / "nowhere").symlink_to("gone")
    place = resolve_path(f"{base}/{path}")
    assert place is not None
    assert not place.exists
    assert not place.is_folder
    assert (place.path, place.missing) == (f"{base}/{where}", f"{base}/{missing}")


def test_links_in_circles_lead_nowhere(base: Path) -> None:
    (base / "a").symlink_to("b")
    (base / "b").symlink_to("a")
    assert resolve_path(f"{base}/a/x") is None


def test_as_many_links_are_followed_as_the_kernel_follows(base: Path) -> None:
    (base / "0").write_text("")
    for number in range(1, 42):
        (base / str(number)).symlink_to(str(number - 1))
    place = resolve_path(f"{base}/40")
    assert place is not None
    assert place.path == f"{base}/0"
    assert os.stat(base / "40").st_size == 0
    assert resolve_path(f"{base}/41") is None
    with pytest.raises(OSError, match="symbolic links"):
        os.stat(base / "41")


def test_a_link_that_can_be_replaced_leads_nowhere(base: Path) -> None:
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    asked: list[str] = []

    def replaceable(link: str) -> bool:
        asked.append(link)
        return True

    assert resolve_path(f"{base}/link/x", replaceable) is None
    assert asked == [f"{base}/link"]
    assert resolve_path(f"{base}/real", replaceable) is not None


def test_names_that_are_no_text_are_followed(base: Path) -> None:
    name = os.fsdecode(b"\xff\n*[")
    (base / name).mkdir()
    place = resolve_path(f"{base}/{name}")
    assert place is not None
    assert place.is_folder


# -- what a command can write to


def test_the_owner_can_always_write_because_he_can_change_the_mode(base: Path) -> None:
    for mode in (0o700, 0o500, 0):
        (base / "d").mkdir(mode=0o700, exist_ok=True)
        (base / "d").chmod(mode)
        assert writable_inside(str(base / "d"))


def test_a_missing_folder_cannot_be_written_to(base: Path) -> None:
    assert not writable_inside(str(base / "none"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_read_only_mount_cannot_be_written_to(base: Path) -> None:
    (base / "d").mkdir()
    script = (
        "import sys; from execserver.sandbox.disk import writable_inside; print(writable_inside(sys.argv[1]))"
    )
    tried = [
        "unshare",
        "-m",
        "sh",
        "-c",
        'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; "$@"',
    ]
    told = [sys.executable, "-c", script, str(base / "d")]
    inside = subprocess.run([*tried, "sh", base / "d", *told], check=True, capture_output=True, text=True)
    outside = subprocess.run(told, check=True, capture_output=True, text=True)
    assert (inside.stdout, outside.stdout) == ("False\n", "True\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
@pytest.mark.parametrize(
    ("mode", "group", "answer"),
    [
        (0o755, 65534, False),
        (0o777, 65534, True),
        (0o775, 65534, False),
        (0o775, 0, True),
        (0o757, 0, False),
    ],
)
def test_the_folder_of_another_user_can_be_written_to_as_its_mode_says(
    base: Path, mode: int, group: int, answer: bool
) -> None:
    (base / "d").mkdir()
    (base / "d").chmod(mode)
    os.chown(base / "d", 65534, group)
    # Even for root: inside a sandbox it has no capability.
    assert writable_inside(str(base / "d")) is answer


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_an_access_control_list_may_grant_more_than_the_mode_shows(base: Path) -> None:
    (base / "d").mkdir(mode=0o755)
    os.chown(base / "d", 65534, 65534)
    assert not writable_inside(str(base / "d"))
    # Owner rwx, user 0 rwx, group r-x, mask rwx, others r-x.
    entries = [(1, 7, -1), (2, 7, 0), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(base / "d", "system.posix_acl_access", text)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("this file system has no access control lists")
        raise
    assert writable_inside(str(base / "d"))


# -- what a command can put something else in the place of


def test_a_file_in_our_folder_can_be_replaced(base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "link").symlink_to("/")
    for mode in (0o755, 0o1777):
        (base / "d").chmod(mode)
        assert replaceable_inside(f"{base}/d/link")
    assert replaceable_inside(f"{base}/d/missing")
    assert not replaceable_inside(f"{base}/none/missing")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make things of another user")
@pytest.mark.parametrize(
    ("folder_owner", "mode", "owner", "answer"),
    [
        (1, 0o1777, 2, False),
        (1, 0o1777, 0, True),
        (0, 0o1777, 2, True),
        (1, 0o777, 2, True),
        (1, 0o755, 0, False),
    ],
    ids=["of-others", "of-ours", "folder-of-ours", "not-sticky", "closed"],
)
def test_in_a_folder_like_tmp_only_what_is_ours_can_be_replaced(
    base: Path, folder_owner: int, mode: int, owner: int, answer: bool
) -> None:
    (base / "d").mkdir()
    (base / "d" / "link").symlink_to("/")
    os.chown(base / "d" / "link", owner, owner, follow_symlinks=False)
    os.chown(base / "d", folder_owner, folder_owner)
    (base / "d").chmod(mode)
    assert replaceable_inside(f"{base}/d/link") is answer
