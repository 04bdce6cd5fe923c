"""The arguments of bubblewrap, without running it."""

from __future__ import annotations

import os
from typing import Literal

import pytest

from execserver.sandbox.backend import Sources
from execserver.sandbox.bubblewrap import MAX_ARGUMENTS, SandboxedCommand, arguments, options
from execserver.sandbox.view import Bind, Mask, Mount, Symlink, Tmpfs, View

SOURCES = Sources("/state/file", "/state/folder")


def made(
    *mounts: Mount,
    base: Literal["read", "write", "empty", "host"] = "read",
    network: bool = False,
    root_user: bool = False,
) -> str:
    view = View(base, mounts, network=network, namespaces=base != "host")
    return " ".join(options(view, SOURCES, root_user=root_user))


def split(data: bytes) -> list[str]:
    assert data.endswith(b"\0")
    return [os.fsdecode(part) for part in data[:-1].split(b"\0")]


PROC_1 = "--ro-bind /state/folder /proc/1"
NAMESPACES = "--unshare-user --unshare-pid --unshare-ipc --disable-userns"


@pytest.mark.parametrize(
    ("base", "begin", "end"),
    [
        ("read", "--ro-bind / / --dev /dev", "--cap-drop ALL"),
        ("write", "--bind / / --dev /dev", "--cap-drop ALL"),
        ("empty", "--perms 0755 --tmpfs / --dev /dev", "--cap-drop ALL --remount-ro /"),
    ],
)
def test_each_base_is_a_root_of_its_own_kind(
    base: Literal["read", "write", "empty"], begin: str, end: str
) -> None:
    assert made(base=base) == f"{begin} {NAMESPACES} --unshare-net --proc /proc {PROC_1} {end}"


def test_the_hosts_files_leave_processes_and_devices_as_they_are() -> None:
    assert made(base="host") == "--dev-bind / / --unshare-user --cap-drop ALL"
    # Root keeps its power over files: nothing is said against that.
    assert made(base="host", root_user=True) == "--dev-bind / / --cap-add ALL"


def test_with_the_network_there_is_no_network_namespace() -> None:
    assert "--unshare-net" in made()
    assert "--unshare-net" not in made(network=True)


def test_settings_of_the_machine_are_read_only_for_root() -> None:
    assert f"--proc /proc {PROC_1} --ro-bind /proc/sys /proc/sys --cap-drop ALL" in made(root_user=True)
    assert "/proc/sys" not in made()


@pytest.mark.parametrize(
    ("mount", "text"),
    [
        (Bind("/s", "/t", writable=False), "--ro-bind /s /t"),
        (Bind("/s", "/t", writable=True), "--bind /s /t"),
        (Bind("/s", "/t", writable=True, device=True), "--dev-bind /s /t"),
        (Bind("/s", "/t", writable=False, device=True), "--ro-bind /s /t"),
        (Mask("/t", directory=True), "--ro-bind /state/folder /t"),
        (Mask("/t", directory=False), "--ro-bind /state/file /t"),
        (Symlink("/t", "../x"), "--symlink ../x /t"),
    ],
)
def test_each_mount_has_its_option(mount: Mount, text: str) -> None:
    assert made(mount).startswith(f"--ro-bind / / --dev /dev {text} --unshare-user")


def test_tmpfs_folders_become_read_only_after_all_mounts_the_deepest_first() -> None:
    text = made(Tmpfs("/a", 0o111), Bind("/a/b", "/a/b", True), Tmpfs("/a/b/c", 0o755), base="empty")
    assert "--perms 0111 --tmpfs /a --bind /a/b /a/b --perms 0755 --tmpfs /a/b/c --unshare-user" in text
    assert text.endswith("--cap-drop ALL --remount-ro /a/b/c --remount-ro /a --remount-ro /")


def test_mounts_keep_their_order() -> None:
    text = made(Bind("/z", "/z", True), Mask("/a", False), Bind("/m", "/m", True))
    assert text.index("/z") < text.index(" /a ") < text.index("/m")


def test_the_command_gets_its_folder_and_exactly_its_variables() -> None:
    inside = SandboxedCommand((), "/w", {"A": "1", "B": "two words", "EMPTY": ""})
    assert split(arguments(["--x"], inside, 7, 8)) == [
        *("--new-session", "--x", "--seccomp", "7", "--json-status-fd", "8", "--chdir", "/w"),
        *("--setenv", "A", "1", "--setenv", "B", "two words", "--setenv", "EMPTY", ""),
    ]


def test_only_workers_of_ours_die_with_their_parent() -> None:
    assert "--die-with-parent" not in split(arguments([], SandboxedCommand((), "/", {}), 3, 4))
    assert "--die-with-parent" in split(
        arguments([], SandboxedCommand((), "/", {}, dies_with_parent=True), 3, 4)
    )


def test_names_that_are_no_text_keep_their_bytes() -> None:
    name = os.fsdecode(b"/\xff\n")
    inside = SandboxedCommand((), name, {os.fsdecode(b"\xfe"): name})
    data = arguments(["--bind", name, name], inside, 3, 4)
    assert b"--bind\0/\xff\n\0/\xff\n\0" in data
    assert b"--setenv\0\xfe\0/\xff\n\0" in data


@pytest.mark.parametrize("name", ["", "a=b", "="])
def test_a_variable_name_that_cannot_be_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="illegal environment variable name"):
        arguments([], SandboxedCommand((), "/", {name: "x"}), 3, 4)


@pytest.mark.parametrize(
    ("inside", "options"),
    [
        (SandboxedCommand((), "/w\0", {}), []),
        (SandboxedCommand((), "/w", {"A\0B": ""}), []),
        (SandboxedCommand((), "/w", {"A": "x\0--bind\0/\0/"}), []),
        (SandboxedCommand(("/bin/sh", "a\0"), "/w", {}), []),
        (SandboxedCommand((), "/w", {}), ["--bind", "/a\0", "/b"]),
    ],
    ids=["folder", "name", "value", "argument", "option"],
)
def test_a_nul_byte_never_becomes_an_argument_of_its_own(
    inside: SandboxedCommand, options: list[str]
) -> None:
    with pytest.raises(ValueError, match="embedded null byte"):
        arguments(options, inside, 3, 4)


def test_more_arguments_than_bubblewrap_takes_are_an_error_that_says_what_to_do() -> None:
    fixed = len(split(arguments([], SandboxedCommand((), "/", {}), 3, 4)))
    most = MAX_ARGUMENTS - fixed
    assert len(split(arguments(["x"] * most, SandboxedCommand((), "/", {}), 3, 4))) == MAX_ARGUMENTS
    with pytest.raises(
        ValueError, match=f"needs {MAX_ARGUMENTS + 1} arguments.*takes {MAX_ARGUMENTS}: fewer"
    ):
        arguments(["x"] * (most + 1), SandboxedCommand((), "/", {}), 3, 4)
