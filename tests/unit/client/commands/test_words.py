from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from execclient import ConnectionFailed, DaemonNotRunning, SystemFailure, UntrustedServer
from execclient.commands.failures import CommandExit, perform, start_failure
from execclient.commands.values import amount, chosen_duration, rough_duration, signal_name


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200000, "2 d")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.3, "0.3 s"), (80, "80 s"), (9000, "2 h 30 min"), (28800, "8 h"), (90061, "1 d 1 h"), (604800, "7 d")],
)
def test_chosen_durations_are_not_rounded_to_one_unit(seconds: float, text: str) -> None:
    assert chosen_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (45 << 20, "45 MiB"), (1 << 52, "4096 TiB")],
)
def test_amounts_are_short(count: int, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("9", "SIGKILL"),
        ("term", "SIGTERM"),
        ("SIGUSR1", "SIGUSR1"),
        ("rtmin+3", "SIGRTMIN+3"),
        ("37", "SIGRTMIN+3"),
    ],
)
def test_signals_are_known_by_name_and_number(text: str, name: str) -> None:
    assert signal_name(text) == name


@pytest.mark.parametrize("text", ["0", "999", "SIG", "KILL ", "RTMIN+x"])
def test_other_signals_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"[sS]ignal"):
        signal_name(text)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DaemonNotRunning("x"), 69),
        (ConnectionFailed("x"), 69),
        (UntrustedServer("x"), 125),
        (CommandExit("x", 3), 3),
        (OSError(5, "x"), 125),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_failure_has_its_status_and_a_line(
    error: Exception, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> int:
        raise error

    assert perform(fail) == status
    assert capfd.readouterr().err.startswith("execserver: ")


@pytest.mark.parametrize(("number", "status"), [(2, 127), (8, 126), (13, 126), (12, 125), (22, 125)])
def test_a_failed_start_has_the_status_of_a_shell(number: int, status: int) -> None:
    error = SystemFailure("process/start", -32603, f"Text (os error {number})")
    failure = start_failure("x", error, path_of="the daemon")

    assert failure.status == status
