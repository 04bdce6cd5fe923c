"""Notifications to the service manager, and its requests; the server is the fake one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.supervisor.conftest import Service, Start, Watch
from tests.support.service_manager import ServiceManager


def begin(start: Start, folder: Path, manager: ServiceManager, *arguments: str) -> Service:
    return start(
        "--listen", f"unix://{folder}/a", *arguments, env=manager.environment, start_new_session=True
    )


@pytest.mark.parametrize("abstract", [False, True])
def test_it_hears_ready_and_stopping(start: Start, watch: Watch, folder: Path, abstract: bool) -> None:
    with ServiceManager(f"@service-manager-{os.getpid()}" if abstract else folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-stuck")
        assert manager.message() == {
            "READY": "1",
            "MAINPID": str(service.pid),
            "STATUS": f"Serving on unix://{folder}/a",
        }
        server = watch(service.event("hello")["pid"])

        service.process.terminate()
        assert manager.message() == {"STOPPING": "1", "STATUS": "Stopping"}
        assert not server.ended()
        assert (folder / "a").exists()

        service.process.terminate()
        assert service.end()[0] == 0
        assert manager.rest() == []


def test_a_server_that_ends_by_itself_is_told_as_stopping(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-stopping", "--fake-after", "0")
        assert [list(manager.message()), list(manager.message())] == [
            ["READY", "MAINPID", "STATUS"],
            ["STOPPING", "STATUS"],
        ]
        assert service.end()[0] == 0
        assert manager.rest() == []


def test_a_server_that_refuses_is_never_told_as_ready(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-exit", "1")
        assert service.end()[0] == 1
        assert [list(message) for message in manager.rest()] == [["STOPPING", "STATUS"]]


def test_its_watchdog_hears_the_beats_of_the_server_and_nothing_else(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = start(
            *("--listen", f"unix://{folder}/a", "--fake-beats", "3"),
            env={**manager.environment, "WATCHDOG_USEC": "5000"},
        )
        assert service.event("hello")["beat_seconds"] == 0.01
        assert "READY" in manager.message()
        assert [manager.message() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
        # Thirty times the limit: by itself the supervisor says nothing.
        with pytest.raises(TimeoutError):
            manager.message(0.15)


def test_a_watchdog_of_another_process_is_left_alone(start: Start, folder: Path) -> None:
    service = start("--listen", f"unix://{folder}/a", env={"WATCHDOG_USEC": "5000", "WATCHDOG_PID": "1"})
    hello = service.event("hello")
    assert hello["beat_seconds"] is None
    assert not [name for name in hello["environment"] if name.startswith("WATCHDOG")]


def test_a_hangup_is_a_reload(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager)
        ready = manager.message()
        before = time.monotonic_ns() // 1000
        service.process.send_signal(signal.SIGHUP)
        reloading = manager.message()
        assert (reloading["RELOADING"], reloading["STATUS"]) == ("1", "Reloading")
        assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert manager.message() == ready
        service.process.terminate()
        assert service.end()[::2] == (0, "")


def test_a_failed_reload_is_said_and_the_service_goes_on(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-reload-error", "--ws-token-file: no\nREADY=0")
        manager.until("READY")
        service.process.send_signal(signal.SIGHUP)
        answer = manager.until("READY")
        assert (answer["READY"], answer["STATUS"]) == ("1", "Reload failed: --ws-token-file: no READY=0")
        assert "reload failed, nothing has changed: --ws-token-file: no" in service.error_line()
        assert service.process.poll() is None


def test_of_overlapping_reloads_the_last_answer_ends_the_wait(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-reloads", "2")
        manager.until("READY")
        for _ in range(2):
            service.process.send_signal(signal.SIGHUP)
            service.event("reload")
        assert "RELOADING" in manager.message()
        assert "RELOADING" in manager.message()
        assert manager.message()["READY"] == "1"
        service.process.terminate()
        assert "STOPPING" in manager.message()


def test_a_reload_before_ready_is_kept_from_the_service_manager(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-late")
        service.event("hello")
        service.process.send_signal(signal.SIGHUP)
        assert manager.message()["STATUS"] == f"Serving on unix://{folder}/a"
        service.process.terminate()
        assert service.end()[0] == 0
        assert [list(message) for message in manager.rest()] == [["STOPPING", "STATUS"]]


def test_a_stopping_service_does_not_reload(start: Start, folder: Path) -> None:
    with ServiceManager(folder / "notify") as manager:
        service = begin(start, folder, manager, "--fake-stuck")
        manager.until("READY")
        service.process.terminate()
        manager.until("STOPPING")
        service.process.send_signal(signal.SIGHUP)
        service.process.terminate()
        assert service.end()[0] == 0
        assert manager.rest() == []
