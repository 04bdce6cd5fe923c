"""The supervisor: parent of the server and of everything that runs below it.

Two jobs: *sub-reaper* (orphans of the commands come here and are reaped) and *killer* (nothing
outlives the service). It knows no request and no command. Standard library only, one thread;
its state is in `Supervisor` and in the kernel.

Rules:

1. It binds, then starts the server with all arguments; only the server knows the options.
2. The death of the server, for any reason, ends the service: everything below is killed by
   membership within 2 s, sockets are removed, then it exits.
3. Exit codes: 0 after a stop or the server's own exit 0; 1 or 2 from the server before
   `ready`, with an empty stdout; everything else is 1.
4. The death of the supervisor is the server's affair (`channel.py`); of both, the next start's
   (`records.py`).
5. The service manager hears of the server's life, never of the supervisor's alone: its watchdog gets
   a ping for each beat of the server's loop and at no other time.

Messages, each a JSON object in one packet of a SOCK_SEQPACKET pair (server: descriptor 3):

    supervisor → server
      {"type": "hello", "version": 2, "instance": N, "supervisorPid": PID, "nofileSoft": N,
       "beatSeconds": S | null, "listeners": [{"kind": "unix" | "tcp" | "stdio", "url": URL}, ...]}
           with descriptors, in order: for each listener the listening socket (stdio: stdin and
           stdout), then the locked record of the instance (missing if there is none)
      {"type": "reload"}        read again what can change without a restart: the credentials
      {"type": "stop"}          end all work and exit within 10 s

    server → supervisor
      {"type": "ready"}         requests are answered: print the URLs, tell the service manager
      {"type": "beat"}          its loop turns; every `beatSeconds`, from `ready` on
      {"type": "reloaded", "error": TEXT | null}
                                the answer to each `reload`; with an error everything is as before
      {"type": "stopping"}      it ends by itself
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from execserver import membership
from execserver.folders import FolderError
from execserver.supervisor import launch
from execserver.supervisor.activation import listener_on, take_descriptors
from execserver.supervisor.listeners import Listener, ListenError, bind_all, requested
from execserver.supervisor.notify import beat_seconds, notify
from execserver.supervisor.packets import (
    CHANNEL_VARIABLE,
    VERSION,
    ChannelError,
    receive_packet,
    send_packet,
)
from execserver.supervisor.records import Record, claim, sweep

# -I: neither PYTHON* variables nor the cwd (an agent's workspace!) may give the server its modules.
SERVER_COMMAND = (sys.executable, "-I", "-X", "utf8", "-m", "execserver.cli")

CHANNEL_DESCRIPTOR = 3
# Room for ten thousand messages while one side is busy; the kernel caps it by net.core.wmem_max.
CHANNEL_BUFFER = 4 << 20
# What a server may need to fail long polls, flush events and close connections.
STOP_GRACE_S = 10.0
# Killing takes milliseconds; longer than this only a process stuck in the kernel lives on.
KILL_TIMEOUT_S = 2.0


def run(argv: Sequence[str], server_command: Sequence[str] = SERVER_COMMAND) -> int:
    """Run the service to its end.

    Args:
        argv: what follows `serve` on the command line.
        server_command: program and first arguments of the server; `serve` and `argv` are added.

    Returns:
        The exit code.
    """
    try:
        passed = take_descriptors(os.environ)
    except ListenError as error:
        launch.say(str(error))
        return error.exit_code
    launch.close_inherited_descriptors()
    launch.enter_launch_folder()
    environment = launch.initial_environment()
    supervisor = Supervisor(os.environ)
    launch.become_subreaper()
    try:
        supervisor.listen(argv, passed)
        supervisor.start([*server_command, "serve", *argv], environment)
    except ListenError as error:
        launch.say(str(error))
        return error.exit_code
    except OSError as error:
        launch.say(f"cannot start the server {server_command[0]}: {error}")
        return supervisor.finish(1)
    os.chdir("/")  # the launch folder may be unmounted from now on
    return supervisor.finish(supervisor.supervise())


class Supervisor:
    """One service, from binding to the last kill. Takes over the process's signal handling."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._listeners: list[Listener] = []
        self._record: Record | None = None
        self._instance = membership.new_instance()
        # Children that this process had before it became the supervisor (`helper & exec execserver`).
        self._strangers = launch.present_children()
        self._nofile_soft = launch.raise_descriptor_limit()

        self._server: int | None = None
        self._status: int | None = None
        self._channel: socket.socket | None = None
        self._ready = False
        self._stopping = False
        self._reloads = 0
        self._kill_at: float | None = None

        self._signals: list[int] = []
        self._hangup_stops = launch.hangup_means_stop()
        self._wakeup = self._handle_signals()

    def listen(self, argv: Sequence[str], passed: Sequence[tuple[int, str]] = ()) -> None:
        """Bind what is asked for, then claim an instance and kill what dead ones left.

        Args:
            argv: the command line.
            passed: descriptors from the service manager, with their names.

        Raises:
            ListenError: nothing is bound.
        """
        activated = [listener_on(descriptor, name) for descriptor, name in passed]
        listeners = requested(argv, self._settings, activated)
        bind_all(listeners)
        self._listeners = listeners
        try:
            self._record, stale = claim(self._settings)
        except (FolderError, OSError) as error:
            launch.say(f"no record of this instance, a double kill could leave processes: {error}")
            return
        self._instance = self._record.instance
        self._name_survivors(sweep(stale))

    def start(self, command: Sequence[str], environment: Mapping[bytes, bytes]) -> None:
        """Start the server with its hello waiting on the channel.

        Raises:
            OSError: the program cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHANNEL_BUFFER)
        ours.setblocking(False)
        self._channel = ours
        self._send_hello()
        if any(listener.kind == "stdio" for listener in self._listeners):
            launch.release_stdio()
        tagged = membership.own_limit()
        try:
            membership.set_own_tag(membership.tag_value(self._instance))
        except membership.TagUnavailableError as error:
            launch.say(f"orphans in their own session may outlive a killed supervisor: {error}")
        try:
            self._server = os.posix_spawn(
                command[0],
                list(command),
                {**environment, CHANNEL_VARIABLE.encode(): b"%d" % CHANNEL_DESCRIPTOR},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 2, 1),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), CHANNEL_DESCRIPTOR),
                ],
                setsid=True,  # Ctrl-C is for the supervisor
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
                setsigmask=[],
            )
        finally:
            # An outer execserver that we run under must still find *us* by its tag.
            membership.clear_own_tag(tagged)
            theirs.close()

    def supervise(self) -> int:
        """Wait for signals, messages and ends until the server ended; returns the service's exit code."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if self._channel is not None:
            poll.register(self._channel, select.POLLIN)
        while self._status is None:
            for descriptor, _ in poll.poll(self._milliseconds_to_kill()):
                if descriptor == self._wakeup.fileno():
                    self._read_wakeups()
                elif not self._read_channel():
                    poll.unregister(descriptor)
            self._handle_pending_signals()
            self._reap()
            if self._kill_at is not None and time.monotonic() >= self._kill_at and self._status is None:
                launch.say("the server did not stop in time")
                return 0
        self._read_channel()  # what the server said before it ended
        return self._exit_code(self._status)

    def finish(self, code: int) -> int:
        """Kill everything below, remove sockets and record; returns `code`."""
        self._tell_stopping()
        survivors = self._kill_everything()
        self._name_survivors(survivors)
        for listener in self._listeners:
            listener.close()
        if self._record is not None and survivors:
            self._record.close()
        elif self._record is not None:
            self._record.remove()
        return code

    # Signals.

    def _handle_signals(self) -> socket.socket:
        """Set our handlers, then reset the rest; returns the socket that tells of signals."""
        readable, writable = socket.socketpair()
        readable.setblocking(False)
        writable.setblocking(False)
        signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda received, _frame: self._signals.append(received))
        launch.reset_signals()
        return readable

    def _read_wakeups(self) -> None:
        try:
            while self._wakeup.recv(4096):
                pass
        except BlockingIOError:
            return

    def _handle_pending_signals(self) -> None:
        while self._signals:
            received = self._signals.pop(0)
            if received == signal.SIGCHLD:
                continue  # children are looked at after every wake-up
            if received != signal.SIGHUP or self._hangup_stops:
                self._stop()
            else:
                self._reload()

    def _stop(self) -> None:
        """Ask the server to stop; the second time wait no longer."""
        now = time.monotonic()
        if self._kill_at is not None:
            self._kill_at = now
            return
        self._kill_at = now + STOP_GRACE_S
        self._tell_stopping()
        if self._channel is not None:
            try:
                send_packet(self._channel, {"type": "stop"})
            except OSError as error:
                launch.say(f"the server cannot be asked to stop: {error}")

    def _reload(self) -> None:
        """Ask the server to read its credentials again."""
        if self._stopping or self._channel is None:
            return
        try:
            send_packet(self._channel, {"type": "reload"})
        except OSError as error:
            launch.say(f"the server cannot be asked to reload: {error}")
            return
        self._reloads += 1
        if self._ready:
            # The time tells the service manager that this answers its request, not an earlier one.
            now = f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
            notify(self._settings, "RELOADING=1", now, status="Reloading")

    def _milliseconds_to_kill(self) -> float | None:
        if self._kill_at is None:
            return None
        return max(0.0, self._kill_at - time.monotonic()) * 1000 + 1

    # The server.

    def _send_hello(self) -> None:
        descriptors = [descriptor for listener in self._listeners for descriptor in listener.descriptors]
        if self._record is not None:
            descriptors.append(self._record.descriptor)
        hello = {
            "type": "hello",
            "version": VERSION,
            "instance": self._instance,
            "supervisorPid": os.getpid(),
            "nofileSoft": self._nofile_soft,
            "beatSeconds": beat_seconds(self._settings),
            "listeners": [{"kind": listener.kind, "url": listener.url} for listener in self._listeners],
        }
        assert self._channel is not None
        send_packet(self._channel, hello, descriptors)

    def _read_channel(self) -> bool:
        """Handle every message that is there; False when there will be no more."""
        if self._channel is None:
            return False
        try:
            while (packet := receive_packet(self._channel)) is not None:
                self._take(packet[0])
        except BlockingIOError:
            return True
        except (ChannelError, OSError) as error:
            launch.say(f"the server's channel is unusable: {error}")
        self._channel.close()
        self._channel = None
        return False

    def _take(self, message: Mapping[str, object]) -> None:
        kind = message["type"]
        if kind == "ready" and not self._ready:
            self._ready = True
            self._announce()
        elif kind == "beat":
            notify(self._settings, "WATCHDOG=1")
        elif kind == "reloaded":
            self._reloaded(message["error"])
        elif kind == "stopping":
            self._tell_stopping()

    def _reloaded(self, error: object) -> None:
        self._reloads -= 1
        if error is not None:
            launch.say(f"reload failed, everything is as before: {error}")
        # Of several reloads the last one's answer ends the wait of the service manager.
        if self._ready and not self._stopping and not self._reloads:
            self._tell_ready(self._serving() if error is None else f"Reload failed: {error}")

    def _announce(self) -> None:
        """The bound addresses on stdout, one a line; the service manager is told."""
        # With stdio in use, descriptor 1 is stderr by now.
        urls = [f"{listener.url}\n" for listener in self._listeners if listener.kind != "stdio"]
        try:
            remaining = "".join(urls).encode(errors="surrogateescape")
            while remaining:
                remaining = remaining[os.write(1, remaining) :]
        except OSError as error:
            launch.say(f"the addresses cannot be printed: {error.strerror}")
        self._tell_ready(self._serving())

    def _serving(self) -> str:
        return f"Serving on {' '.join(listener.url for listener in self._listeners)}"

    def _tell_ready(self, status: str) -> None:
        # The process id is for a service that was started through a shell.
        notify(self._settings, "READY=1", f"MAINPID={os.getpid()}", status=status)

    def _tell_stopping(self) -> None:
        if not self._stopping:
            self._stopping = True
            notify(self._settings, "STOPPING=1", status="Stopping")

    def _exit_code(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        if self._kill_at is not None or code == 0:
            return 0
        if code < 0:
            launch.say(f"the server was killed by signal {-code} ({signal.strsignal(-code)})")
            return 1
        if self._ready:
            launch.say(f"the server failed with exit code {code}")
            return 1
        if code == 1 and not launch.importable_in_isolation():
            launch.say("this package is found by PYTHONPATH or in the current folder only; install it")
        return code if code in (1, 2) else 1

    # Children.

    def _reap(self) -> None:
        """Take the exit of every child that ended: the server's, and of orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._strangers.discard(pid)
            if pid == self._server:
                self._status = status

    def _kill_everything(self) -> list[int]:
        """Kill members and whatever else is below us, until two scans in a row are empty."""
        roots = [os.getpid()]
        deadline = time.monotonic() + KILL_TIMEOUT_S
        empty_scans = 0
        while True:
            left = membership.members(self._instance, exclude=self._strangers, roots=roots)
            empty_scans = 0 if left else empty_scans + 1
            remaining = deadline - time.monotonic()
            if empty_scans == 2 or remaining <= 0:
                return sorted(left)
            if left:
                survivors = membership.kill_members(
                    self._instance, exclude=self._strangers, roots=roots, timeout=remaining
                )
                if survivors:
                    return survivors
            self._reap()

    def _name_survivors(self, survivors: Sequence[int]) -> None:
        if survivors:
            launch.say(f"processes that could not be killed: {', '.join(map(str, survivors))}")
