from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from execserver.supervisor.notify import beat_seconds, notify


@pytest.mark.parametrize("abstract", [False, True])
def test_the_state_arrives(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"@notify-test-{os.getpid()}" if abstract else "/proc/self/cwd/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        notify({"NOTIFY_SOCKET": name}, "READY=1")
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:1:2"}, {"NOTIFY_SOCKET": "/gone"}]
)
def test_no_manager_is_no_error(environment: dict[str, str]) -> None:
    notify(environment, "READY=1")


def test_several_states_and_the_status_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = "/proc/self/cwd/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        notify(
            {"NOTIFY_SOCKET": address}, "READY=1", "MAINPID=5", status="Serving on unix:///a\nERRNO=1\udcff"
        )
        assert manager.recv(100) == b"READY=1\nMAINPID=5\nSTATUS=Serving on unix:///a ERRNO=1?"


def test_a_beat_is_due_twice_within_the_watchdog_s_limit() -> None:
    assert beat_seconds({"WATCHDOG_USEC": "30000000"}) == 15
    assert beat_seconds({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}) == 15
    assert beat_seconds({"WATCHDOG_USEC": "1"}) == 0.01


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "٣"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_beat_is_due_without_a_watchdog_of_ours(environment: dict[str, str]) -> None:
    assert beat_seconds(environment) is None


def test_a_full_descriptor_table_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    address = "/proc/self/cwd/notify"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            notify({"NOTIFY_SOCKET": address}, "WATCHDOG=1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        notify({"NOTIFY_SOCKET": address}, "READY=1")
        assert manager.recv(100) == b"READY=1"
