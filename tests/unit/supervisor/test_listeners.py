from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.supervisor import listeners
from execserver.supervisor.listener import ListenError, UnixListener
from execserver.supervisor.listeners import bind_all, parse, requested


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="sup-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("unix:///run/x.sock", "unix:///run/x.sock"),
        ("stdio", "stdio"),
        ("stdio://", "stdio"),
        ("ws://127.0.0.1:0", "ws://127.0.0.1:0"),
        ("ws://0.0.0.0:65535", "ws://0.0.0.0:65535"),
        ("ws://[::1]:80", "ws://[::1]:80"),
    ],
)
def test_accepted_forms(value: str, url: str) -> None:
    assert parse(value).url == url


@pytest.mark.parametrize(
    "value",
    [
        "", "off", "none", "stdio:", "stdio:///", "unix:", "unix://", "unix:///", "unix:///tmp/", "unix://tmp/x",
        "unix:///a\0b", "/tmp/x", "wss://127.0.0.1:1", "http://127.0.0.1:1", "ws://", "ws://127.0.0.1",
        "ws://127.0.0.1:", "ws://127.0.0.1:65536", "ws://127.0.0.1:-1", "ws://127.0.0.1:٣", "ws://localhost:1",
        "ws://127.1:1", "ws://::1:1", "ws://[127.0.0.1]:1", "ws://[::1%lo]:1", "ws://127.0.0.1:1/", "ws://:1",
        "WS://127.0.0.1:1", " ws://127.0.0.1:1",
    ],
)  # fmt: skip
def test_everything_else_is_refused_by_name(value: str) -> None:
    with pytest.raises(ListenError) as refused:
        parse(value)
    assert repr(value) in str(refused.value)
    assert "unix:///ABSOLUTE/PATH, ws://IP:PORT" in str(refused.value)
    assert refused.value.exit_code == 1


def urls(arguments: list[str], environment: dict[str, str] | None = None) -> list[str]:
    return [listener.url for listener in requested(arguments, environment or {})]


def test_the_flag_is_found_among_other_arguments_in_both_forms() -> None:
    arguments = ["--log", "x", "--listen", "stdio", "--other=1", "--listen=unix:///x", "--", "--listen"]
    assert urls(arguments) == ["stdio", "unix:///x"]


def test_the_variable_counts_only_without_the_flag() -> None:
    environment = {"EXECSERVER_LISTEN": " stdio  ws://127.0.0.1:0 "}
    assert urls([], environment) == ["stdio", "ws://127.0.0.1:0"]
    assert urls(["--listen", "unix:///x"], environment) == ["unix:///x"]


def test_the_default_is_in_a_private_folder() -> None:
    assert urls([], {"XDG_RUNTIME_DIR": "/run/user/7"}) == ["unix:///run/user/7/execserver/execserver.sock"]
    state = {"XDG_STATE_HOME": "/state"}
    for environment in (state, state | {"XDG_RUNTIME_DIR": ""}, state | {"XDG_RUNTIME_DIR": "relative"}):
        assert urls([], environment) == ["unix:///state/execserver/execserver.sock"]
    assert urls([], {"HOME": "/tmp"}) == ["unix:///tmp/.local/state/execserver/execserver.sock"]


def test_without_a_place_for_the_default_socket_the_way_out_is_said(folder: Path) -> None:
    with pytest.raises(ListenError, match=r"none .from HOME. is not there; set XDG_STATE_HOME.*--listen"):
        requested([], {"HOME": f"{folder}/none"})


@pytest.mark.parametrize("arguments", [["--listen"], ["--listen", "--other"]])
def test_a_flag_without_value_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(ListenError, match="needs a value") as refused:
        requested(arguments, {})
    assert refused.value.exit_code == 2


def test_an_empty_value_is_refused() -> None:
    with pytest.raises(ListenError, match="''"):
        requested(["--listen="], {})


def test_stdio_is_possible_once() -> None:
    with pytest.raises(ListenError, match="more than once"):
        requested(["--listen", "stdio", "--listen=stdio://"], {})


def test_too_many_listeners_are_refused() -> None:
    with pytest.raises(ListenError, match="at most 64"):
        requested(["--listen=ws://127.0.0.1:0"] * 65, {})


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_port_zero_takes_a_free_one_and_says_which(host: str) -> None:
    listener = parse(f"ws://{host}:0")
    listener.bind()
    port = int(listener.url.rpartition(":")[2])
    assert listener.url == f"ws://{host}:{port}"
    socket.create_connection((host.strip("[]"), port)).close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.strip("[]"), port))


def test_a_port_in_use_is_an_error_and_nothing_stays_bound(folder: Path) -> None:
    first = parse("ws://127.0.0.1:0")
    first.bind()
    unix = parse(f"unix://{folder}/s")
    with pytest.raises(ListenError, match="in use"):
        bind_all([unix, parse(first.url)])
    assert os.listdir(folder) == []
    first.close()


def test_a_socket_file_has_mode_0600_in_new_folders_of_mode_0700(folder: Path) -> None:
    before = os.umask(0o002)
    listener = UnixListener(f"{folder}/a/b/s")
    listener.bind()
    assert os.umask(before) == 0o002
    assert stat.S_IMODE(os.lstat(folder / "a/b/s").st_mode) == 0o600
    assert stat.S_IMODE(os.lstat(folder / "a").st_mode) == 0o700
    assert stat.S_IMODE(os.lstat(folder / "a/b").st_mode) == 0o700
    listener.close()
    listener.close()
    assert os.listdir(folder / "a/b") == []


def test_the_longest_path_works_and_a_longer_one_is_refused(folder: Path) -> None:
    base = f"{folder}/"
    longest = UnixListener(base + "x" * (107 - len(base)))
    longest.bind()
    longest.close()
    with pytest.raises(ListenError, match="108 bytes, a Unix socket takes at most 107"):
        UnixListener(base + "x" * (108 - len(base))).bind()


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{folder}/s")
    listener = UnixListener(f"{folder}/s")
    listener.bind()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{folder}/s")
    listener.close()


def test_a_live_socket_is_kept_and_its_owner_named(folder: Path) -> None:
    first = UnixListener(f"{folder}/s")
    first.bind()
    with pytest.raises(ListenError, match=f"in use by process {os.getpid()}$"):
        UnixListener(f"{folder}/s").bind()
    first.close()


def test_a_socket_with_a_full_backlog_is_alive(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(f"{folder}/s")
        busy.listen(0)
        client.connect(f"{folder}/s")
        with pytest.raises(ListenError, match="in use"):
            UnixListener(f"{folder}/s").bind()


def test_another_type_of_socket_is_kept(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(f"{folder}/s")
        with pytest.raises(ListenError, match="in use"):
            UnixListener(f"{folder}/s").bind()


def test_a_file_that_is_no_socket_is_never_removed(folder: Path) -> None:
    (folder / "file").write_text("precious")
    (folder / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(ListenError, match="no socket"):
            UnixListener(f"{folder}/{name}").bind()
    assert (folder / "file").read_text() == "precious"
    assert (folder / "link").is_symlink()


def test_the_socket_of_a_later_daemon_is_not_removed(folder: Path) -> None:
    first, second = UnixListener(f"{folder}/s"), UnixListener(f"{folder}/s")
    first.bind()
    os.unlink(folder / "s")
    second.bind()
    first.close()
    assert (folder / "s").exists()
    second.close()
    assert not (folder / "s").exists()


def default_in(folder: Path) -> UnixListener:
    return listeners.default_listener({"XDG_RUNTIME_DIR": str(folder)})


def test_the_default_folder_is_created_private(folder: Path) -> None:
    listener = default_in(folder)
    listener.bind()
    assert stat.S_IMODE(os.lstat(folder / "execserver").st_mode) == 0o700
    listener.close()


def test_a_default_folder_open_to_others_is_refused(folder: Path) -> None:
    (folder / "execserver").mkdir()
    (folder / "execserver").chmod(0o750)
    with pytest.raises(ListenError, match="mode 0750"):
        default_in(folder).bind()


def test_a_default_folder_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "execserver").symlink_to("real")
    with pytest.raises(ListenError, match="symbolic link"):
        default_in(folder).bind()


def test_a_default_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "execserver").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(
        ListenError,
        match=r"belongs to \S+ \(uid \d+\), .*have it removed",
    ):
        default_in(folder).bind()


def test_a_folder_that_cannot_be_created_is_named(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(ListenError, match="Not a directory"):
        UnixListener(f"{folder}/file/s").bind()
