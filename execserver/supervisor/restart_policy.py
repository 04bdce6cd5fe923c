"""Starts and restarts of servers (rules 2, 3, 4, 6 of `program.py`).

The server's pidfd reports its death. Then its channels are read to the end, and only then is the next step
decided. No child is reaped while a dying server may have left us one of the fd store.

A server that crashes soon after each `ready` would use a whole processor with restarts, so from the second
crash in a row on there is a growing wait. The service does not give up, because it serves requests in
between, and its end would kill every command. A SIGKILL from outside is no crash: it does not predict the
fate of the next server, which starts at once each time. A kill by the kernel for lack of memory looks the
same; under systemd it ends the service (`OOMPolicy=`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from execserver.supervisor import launch
from execserver.supervisor.fd_store import FdStore
from execserver.supervisor.loop import Loop
from execserver.supervisor.notify import ServiceManager
from execserver.supervisor.packets import ChannelError
from execserver.supervisor.server_process import ServerProcess

BACKOFF_S = (0, 0.1, 0.4, 1.6, 5)
"""The wait before a start, by the number of failed starts in a row, or by the number of crashes soon after
`ready` minus one; the last value for higher numbers."""
STEADY_S = 5.0
"""A server that lives this long after `ready` did not crash at its start: clients have reconnected by then,
and have sent requests. It equals the longest wait, so that a crash loop takes at most half of the time."""
# The interval of checks whether the server hangs in the kernel, which no event reports. A check costs 50 µs.
HANG_LOOK_S = 1.0
# The end of a large process takes a while: the kernel frees its memory before the last thread is gone.
HANG_GRACE_S = 0.5

Start = Callable[[Sequence[int], bool], ServerProcess]
OnMessage = Callable[[ServerProcess, Mapping[str, object]], None]


class Restarter:
    """The current server, and the reaction to its death."""

    def __init__(self, loop: Loop, manager: ServiceManager, start: Start, on_message: OnMessage) -> None:
        """Set up the restarter; `begin` starts the first server.

        Args:
            loop: the supervisor's loop.
            manager: gets notifications of restarts.
            start: starts a server, given the ends of the fd store channel and whether the server takes over.
            on_message: called with each message, including `ready`.
        """
        self._loop = loop
        self._service_manager = manager
        self._start = start
        self._on_message = on_message
        self._fd_store = FdStore(loop)
        self._hanging: list[ServerProcess] = []
        """Killed servers that have not ended yet."""
        self._failures = 0
        """Failed starts in a row: those that did not reach `ready`."""
        self._early_crashes = 0
        """Crashes soon after `ready`, since the last server that lived longer."""
        self._alone = False
        self._was_ready = False
        self.count = 0
        """Restarts so far, without upgrades."""
        self.server: ServerProcess | None = None
        self.stopping = False
        """Whether the server was asked to stop: its death ends the service with exit code 0."""
        self.exit_code: int | None = None
        """The exit code of the service, once it has to end."""

    def begin(self, alone: bool) -> None:
        """Start the first server.

        Args:
            alone: whether it is the only server, without restarts.

        Raises:
            OSError: the program cannot be started.
        """
        self._alone = alone
        self._start_server()
        self._look_for_hang()

    def must_not_reap(self, pid: int, status: int) -> bool:
        """Whether an ended child has to stay a zombie."""
        server = self.server
        if server is not None and server.ended():
            self._server_ended()
            if pid == server.pid:
                return True
        elif server is not None and server.is_dying():
            # Its children became ours with its last thread, before we know which of them are in the fd store.
            return True
        return self._fd_store.must_not_reap(pid, status)

    def close(self) -> None:
        """Close the fd store."""
        self._fd_store.close()

    def _start_server(self) -> None:
        channel, nudge = self._fd_store.connect()
        try:
            self.server = self._start((channel.fileno(), nudge), self._was_ready)
        except OSError:
            self._fd_store.disconnect()
            raise
        finally:
            channel.close()
            os.close(nudge)
        self._loop.watch(self.server.pidfd, self._server_ended)
        self._loop.watch(self.server.channel.fileno(), self._read_channel)
        if self._was_ready:
            self._fd_store.hand_over()

    def _read_channel(self) -> None:
        server = self.server
        assert server is not None
        try:
            for message in server.messages():
                if message["type"] == "ready":
                    self._failures = 0
                    self._was_ready = True
                    server.ready_at = server.ready_at or time.monotonic()
                self._on_message(server, message)
        except (ChannelError, OSError) as error:
            launch.report(f"the server's channel is unusable: {error}")
            server.kill()
            server.hung_up = server.faulty = True
        if server.hung_up:
            self._loop.forget(server.channel.fileno())

    # The end of a server.

    def _server_ended(self) -> None:
        if self.server is not None:
            self._handle_end(self.server, os.waitpid(self.server.pid, 0)[1])

    def _look_for_hang(self) -> None:
        """Check whether a killed server hangs in the kernel, which must not delay the new server."""
        self._loop.call_in(HANG_LOOK_S, self._look_for_hang)
        for server in [server for server in self._hanging if server.ended()]:
            self._hanging.remove(server)
            os.close(server.pidfd)
        if self._hanging:
            self._fd_store.look_for_ends()
        if self.server is not None and self.server.is_dying():
            self._loop.call_in(HANG_GRACE_S, self._give_up_hanging)

    def _give_up_hanging(self) -> None:
        server = self.server
        if server is not None and server.is_dying() and not server.ended():
            server.kill()  # a zombie leader's other threads
            self._hanging.append(server)
            self._handle_end(server, None)

    def _handle_end(self, server: ServerProcess, status: int | None) -> None:
        """Read the last messages of a dead server, then start a new one or end the service."""
        self._read_channel()
        self._fd_store.disconnect()
        self._loop.forget(server.channel.fileno())
        self._loop.forget(server.pidfd)
        server.channel.close()
        if status is not None:
            os.close(server.pidfd)
        self.server = None
        if self.stopping:
            self.exit_code = 0
        elif server.stopping or self._alone or not self._was_ready:
            self.exit_code = self._code_of(server, status)
        else:
            self._fd_store.adopt()
            if server.upgrading and status == 0:
                launch.report("upgrading: starting the new server")
                self._service_manager.server_lost("Upgrading")
                self._try_start()
            else:
                self._restart(server, status)

    def _code_of(self, server: ServerProcess, status: int | None) -> int:
        if status == 0:
            return 0
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if code in (1, 2) and not server.ready:
            if code == 1 and not launch.importable_in_isolation():
                launch.report("this package is found only by PYTHONPATH or in the current folder; install it")
            return code
        launch.report(f"the server {_describe(status)}")
        return 1

    # The next one.

    def _restart(self, server: ServerProcess, status: int | None) -> None:
        cause = f"the server {_describe(status)}"
        wait = 0
        if not server.ready:
            self._failures += 1
            wait = self._failures
        elif time.monotonic() - server.ready_at >= STEADY_S:
            self._early_crashes = 0
        elif server.faulty or (status is not None and os.waitstatus_to_exitcode(status) != -signal.SIGKILL):
            wait = min(self._early_crashes, len(BACKOFF_S) - 1)
            self._early_crashes += 1
            if wait:
                cause += f", {self._early_crashes} crashes in a row within {STEADY_S:g} s of ready"
        self._start_later(cause, wait)

    def _start_later(self, cause: str, wait: int) -> None:
        if self._failures == len(BACKOFF_S):
            launch.report(f"{cause}; {self._failures} starts in a row did not reach ready: giving up")
            self.exit_code = 1
            return
        self.count += 1
        delay = BACKOFF_S[wait]
        launch.report(f"{cause}; starting it again" + (f" in {delay} s" if delay else ""))
        self._service_manager.server_lost(f"Restarting: {cause}")
        self._loop.call_in(delay, self._try_start)
        self._beat_for_server()

    def _try_start(self) -> None:
        try:
            self._start_server()
        except OSError as error:
            self._failures += 1
            self._start_later(f"the server cannot be started: {error}", self._failures)

    def _beat_for_server(self) -> None:
        """Ping the watchdog while the next start has to wait."""
        if self.server is None and self._service_manager.beat_seconds is not None:
            self._service_manager.beat()
            self._loop.call_in(self._service_manager.beat_seconds, self._beat_for_server)


def _describe(status: int | None) -> str:
    if status is None:
        return "was killed and hangs in the kernel"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}"
