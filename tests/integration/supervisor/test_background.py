"""A daemon in a background job: what its commands inherit, and how the tests' own programs behave."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.wire import Server

IGNORED = ("HUP", "INT", "QUIT", "PIPE", "TERM", "CHLD", "USR1", "USR2", "ALRM", "TSTP", "TTOU", "WINCH")

# The C library's own: programs that it starts by posix_spawn have them ignored.
_THREAD_SIGNALS = 1 << 31 | 1 << 32

SHOW = ("sh", "-c", "grep -E '^Sig(Ign|Blk):' /proc/self/status; readlink /proc/self/fd/0")


def in_background(*ignored: str) -> list[str]:
    """A command to be put before another: it ignores signals, and has no stdin."""
    return ["sh", "-c", f"trap '' {' '.join(ignored)}; exec \"$@\" <&-", "sh"]


def assert_as_in_the_foreground(shown: str) -> None:
    values = dict(line.split(":\t") for line in shown.splitlines() if line.startswith("Sig"))
    assert int(values["SigIgn"], 16) & ~_THREAD_SIGNALS == 0
    assert int(values["SigBlk"], 16) == 0


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
@pytest.mark.parametrize("ignored", [IGNORED, ("HUP",), ("INT", "QUIT"), ("PIPE",)], ids=" ".join)
def test_commands_of_a_daemon_with_ignored_signals_have_the_defaults(
    environment: dict[str, str], tmp_path: Path, ignored: tuple[str, ...], tty: bool
) -> None:
    prefix = in_background(*ignored)
    server = Server(f"unix://{tmp_path}/s", env=environment, cwd=tmp_path, prefix=prefix)
    try:
        with server.connect() as client:
            command = client.start(*SHOW, tty=tty).wait_closed()
            assert_as_in_the_foreground(command.output.decode().replace("\r\n", "\n"))
            again = client.shell("kill -INT $$; kill -QUIT $$; kill -HUP $$; echo alive").wait_closed()
            assert again.exit_code == 128 + signal.SIGINT
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_was_started_with_it_ignored_ends_by_a_signal_all_the_same(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    prefix = in_background("INT", "TERM", "HUP")
    server = Server(f"unix://{tmp_path}/s", env=environment, cwd=tmp_path, prefix=prefix)
    server.process.send_signal(number)
    assert server.process.wait(20) == 0
    assert not (tmp_path / "s").exists()
    server.stop()


def test_programs_that_tests_start_have_the_defaults_though_pytest_was_started_with_signals_ignored() -> None:
    done = subprocess.run(SHOW, capture_output=True, text=True, check=True)
    assert_as_in_the_foreground(done.stdout)
    assert done.stdout.splitlines()[-1] == "/dev/null"
