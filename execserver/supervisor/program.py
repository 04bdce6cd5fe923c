"""The supervisor: parent of the server and of all its processes.

It has four jobs: *subreaper* (it reaps orphans of commands), *fd store* (it keeps descriptors that a new
server needs), *restarts* of the server, and *cleanup* (it kills all processes at the end). It handles no
requests and no commands. Standard library only, one thread.

Rules:

1. It spawns the server with all arguments, binds the listeners while the server loads (`start.py`), and then
   sends hello. Only the server knows all options, and checks them after the hello. If the supervisor cannot
   listen, it closes the channel instead: the server then reports wrong options, and if there are none, the
   supervisor reports its own error.
2. After the death of a server that was `ready`, it starts a new one with the same command, environment,
   folder, sockets and instance, and passes it the stored descriptors (`fd_store.py`). Clients meanwhile wait
   in the backlog. A pidfd reports the death; both channels are read to the end before the supervisor reacts.
3. The waits between starts are 0, 0.1, 0.4, 1.6 and 5 s; after five starts in a row that do not reach `ready`
   the service ends (`restart_policy.py`). After crashes in a row within 5 s of `ready` the waits are the
   same, and the service continues with 5 s. After a SIGKILL the new server starts at once.
4. The service ends, and all its processes are killed by their tags within 2 s, when it is asked to stop, when
   the server ends after `stopping`, when the first server ends before `ready`, and with `stdio` when the
   server ends: a new server cannot take over a request that was read in part.
5. Exit codes: 0 after a stop or an announced exit 0; 1 or 2 from the first server before `ready`, with an
   empty stdout; everything else is 1.
6. A server that was killed but hangs in the kernel (a thread in a dead mount) counts as dead after 500 ms.
7. The server handles the death of the supervisor (`server_channel.py`), and the next start handles the death
   of both (`instance_records.py`).
8. The service manager monitors the server: its watchdog gets a ping for each beat of the server's loop. The
   supervisor pings only while no server runs because the next start has to wait.
9. An upgrade does not replace the supervisor's code. A server of another version refuses its `hello` with
   exit code 1. To find this out in time, the running server tries the new code before it sends `upgrading`.

Messages, each a JSON object in one packet of a SOCK_SEQPACKET pair (server: descriptor 3):

    supervisor → server
      {"type": "hello", "version": 3, "instance": N, "supervisorPid": PID, "nofileSoft": N,
       "beatSeconds": S | null, "takeOver": BOOL, "record": BOOL,
       "listeners": [{"kind": "unix" | "tcp" | "stdio" | "remote", "url": URL}, ...]}
           with descriptors, in order: for each listener the listening socket (stdio: stdin and
           stdout; remote: the file in memory of `remote.py`), the fd store channel and its
           nudge pipe (`fd_store_protocol.py`), then, if `record`, the locked record of the instance
      {"type": "reload"}        read settings that can change without a restart, or upgrade
      {"type": "drain", "active": BOOL, "endsInMs": N | null}
                                open no new sessions, or open them again; after that, and once `ready`,
                                report the sessions. `endsInMs`: when the service ends at the latest.
                                A new server gets it behind its hello while the drain lasts
      {"type": "stop"}          end all work and exit within 10 s

    server → supervisor
      {"type": "ready", "drainGraceSeconds": S}
                                requests are answered: print the URLs (once), notify the service manager.
                                SIGTERM drains for so long before it stops the service
      {"type": "sessions", "count": N}
                                the number of sessions, while the service drains
      {"type": "beat"}          its loop runs; every `beatSeconds`, from `ready` on
      {"type": "reloaded", "error": TEXT | null}
                                a reply to `reload`; with an error nothing has changed
      {"type": "upgrading"}     the other reply: it exits with 0, and the new server takes over
      {"type": "stopping"}      it ends by itself, and the service with it
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from execserver.private_folder import FolderError
from execserver.supervisor import children, launch, server_process
from execserver.supervisor.activation import listener_on
from execserver.supervisor.control_socket import ControlSocket
from execserver.supervisor.drain import Drain
from execserver.supervisor.earlier_state import migrate
from execserver.supervisor.instance_records import InstanceRecord, claim, sweep
from execserver.supervisor.listener import Listener, ListenError
from execserver.supervisor.listeners import bind_all, requested
from execserver.supervisor.loop import Loop, Signals
from execserver.supervisor.notify import ServiceManager
from execserver.supervisor.packets import VERSION
from execserver.supervisor.restart_policy import Restarter
from execserver.supervisor.server_process import ServerProcess
from execserver.supervisor.spawning import ServiceLaunch

# The time for a server to fail long polls, flush events and close connections.
STOP_GRACE_S = 10.0
# The time for a server to answer the requests that it has read, before a new server takes over.
UPGRADE_GRACE_S = 20.0
# The time for the first server to load and check the settings, if the service cannot listen.
CHECK_TIMEOUT_S = 10.0
# Killing takes milliseconds; only a process that hangs in the kernel survives longer.
KILL_TIMEOUT_S = 2.0
# What the service manager is asked for beyond all that, for a busy machine.
SPARE_S = 8.0

_STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(argv: Sequence[str], launched: ServiceLaunch, passed: Sequence[tuple[int, str]] = ()) -> int:
    """Run the service that `start.run` has started to its end.

    Args:
        argv: the command line after `serve`.
        launched: the state at the start of the service, with the first server.
        passed: descriptors from the service manager, with their names.

    Returns:
        The exit code.
    """
    supervisor = Supervisor(os.environ, launched)
    try:
        supervisor.listen(argv, passed)
        launch.become_subreaper()
        supervisor.start()
    except ListenError as error:
        code = supervisor.dismiss_first()
        if code:
            return code  # the arguments or settings are wrong, which may be the reason
        launch.report(str(error))
        return error.exit_code
    except OSError as error:
        launch.report(f"cannot start the server {launched.command[0]}: {error}")
        return supervisor.finish(1)
    return supervisor.finish(supervisor.supervise())


class Supervisor:
    """One service, from binding to the last kill. It replaces the process's signal handlers."""

    def __init__(self, settings: Mapping[str, str], launched: ServiceLaunch) -> None:
        self._command = launched.command
        self._environment = launched.environment
        self._folder = os.getcwdb()
        self._listeners: list[Listener] = []
        self._record: InstanceRecord | None = None
        self._instance = launched.instance
        self._other_children = launched.other_children
        self._nofile_soft = launched.nofile_soft
        self._first = None if launched.first is None else ServerProcess(*launched.first)

        self._loop = Loop()
        self._service_manager = ServiceManager(settings)
        self._settings = settings
        self._restarter = Restarter(
            self._loop, self._service_manager, self._start_server, self._handle_message
        )
        self._drain = Drain(self._loop, self._send_drain, self._end_of_drain)
        self._drain_grace = 0.0
        self._control: ControlSocket | None = None
        self._printed = False

        self._hangup_stops = launch.hangup_means_stop()
        self._signals = Signals(self._loop, (*_STOPPING_SIGNALS, signal.SIGCHLD))
        launch.reset_signals()

    def listen(self, argv: Sequence[str], passed: Sequence[tuple[int, str]] = ()) -> None:
        """Bind the listeners, claim an instance, and kill the processes of dead instances.

        Args:
            argv: the command line after `serve`.
            passed: descriptors from the service manager, with their names.

        Raises:
            ListenError: a listener cannot be bound; then none is.
        """
        activated = [listener_on(descriptor, name) for descriptor, name in passed]
        listeners = requested(argv, self._settings, activated)
        bind_all(listeners)
        self._listeners = listeners
        # Before the claim, which needs the migrated records, and before the hello, after which the server
        # reads state.
        try:
            message = migrate(self._settings)
        except (FolderError, OSError) as error:
            message = f"state of an earlier version was not migrated: {error}"
        if message is not None:
            launch.report(message)
        try:
            self._record, stale = claim(self._settings, self._instance)
        except (FolderError, OSError) as error:
            launch.report(f"no record of this instance, so a double kill could leave processes: {error}")
            return
        if self._record.instance != self._instance:  # one in a billion: the tag of the first server is wrong
            self.discard_first()
        self._instance = self._record.instance
        self._name_survivors(sweep(stale))
        try:
            self._control = ControlSocket(self._loop, self._record.control_path, self._answer_control)
        except OSError as error:
            launch.report(f"no control socket, so `execserver drain` cannot reach this service: {error}")

    def start(self) -> None:
        """Start the first server.

        Raises:
            OSError: the program cannot be started.
        """
        with_stdio = any(listener.kind == "stdio" for listener in self._listeners)
        self._restarter.begin(alone=with_stdio)
        if with_stdio:
            launch.release_stdio()

    def discard_first(self) -> None:
        """End the first server if it has not received its hello yet."""
        if self._first is not None:
            self._first.discard()
            self._first = None

    def dismiss_first(self) -> int:
        """Let the first server report what is wrong with the arguments and settings.

        Returns:
            Its exit code: 0 if nothing is wrong.
        """
        first, self._first = self._first, None
        return 0 if first is None else first.dismiss(CHECK_TIMEOUT_S)

    def supervise(self) -> int:
        """Handle signals, messages, ended children and timers; returns the service's exit code."""
        while self._restarter.exit_code is None:
            self._loop.turn()
            self._handle_pending_signals()
            children.reap(self._must_not_reap)
        return self._restarter.exit_code

    def finish(self, code: int) -> int:
        """Kill all processes of the service, remove sockets and record; returns `code`."""
        self._service_manager.stopping()
        self._restarter.close()  # killing needs descriptors
        survivors = children.kill_all(self._instance, self._other_children, KILL_TIMEOUT_S)
        self._name_survivors(survivors)
        for listener in self._listeners:
            listener.close()
        if self._control is not None:
            self._control.close()
        if self._record is not None and survivors:
            self._record.close()
        elif self._record is not None:
            self._record.remove()
        # At its end the interpreter restores default handlers, except for ignored signals. A second signal
        # must not turn a clean exit into a kill.
        for number in _STOPPING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return code

    def _must_not_reap(self, pid: int, status: int) -> bool:
        self._other_children.discard(pid)  # the pid may be reused by a process of the service
        return self._restarter.must_not_reap(pid, status)

    # Signals.

    def _handle_pending_signals(self) -> None:
        for received in self._signals.take():
            if received == signal.SIGCHLD:
                continue  # children are checked after every wake-up
            if received == signal.SIGTERM and self._may_drain():
                self._service_manager.stopping(self._drain_grace + STOP_GRACE_S + KILL_TIMEOUT_S + SPARE_S)
                self._drain.end_service(self._drain_grace)
            elif received != signal.SIGHUP or self._hangup_stops:
                self._stop()
            else:
                self._reload()

    def _stop(self) -> None:
        """Ask the server to stop; the second time, or without a server, end at once."""
        if self._restarter.server is None:
            self._restarter.exit_code = 0
        elif self._restarter.stopping:
            self._stop_took_too_long()
        else:
            self._restarter.stopping = True
            self._loop.call_in(STOP_GRACE_S, self._stop_took_too_long)
            self._service_manager.stopping()
            self._send(self._restarter.server, "stop")

    def _may_drain(self) -> bool:
        """Whether SIGTERM begins a drain: not the second one, and not while the first server starts."""
        return self._drain_grace > 0 and not (self._drain.ends_service or self._restarter.stopping)

    def _end_of_drain(self, reason: str | None) -> None:
        if reason is not None:
            launch.report(reason)
        if not self._restarter.stopping:
            self._stop()

    def _send_drain(self, message: Mapping[str, object]) -> None:
        server = self._restarter.server
        if server is not None:
            try:
                server.send(message)
            except OSError as error:
                launch.report(f"the server cannot be asked to drain: {error}")

    def _answer_control(self, message: Mapping[str, object]) -> Mapping[str, object]:
        kind, fault = message["type"], None
        if kind == "status":
            pass
        elif any(listener.kind == "stdio" for listener in self._listeners):
            fault = "a daemon over stdio has one client and ends with it: it cannot drain"
        elif kind == "drain":
            self._drain.begin()
        elif kind == "cancel" and (self._drain.ends_service or self._restarter.stopping):
            fault = "the service is ending, by SIGTERM: that cannot be cancelled"
        elif kind == "cancel":
            self._drain.cancel()
        else:
            fault = f"there is no {kind!r} here: this service is of another version"
        if fault is not None:
            return {"type": "refused", "error": fault}
        urls = [listener.url for listener in self._listeners]
        draining, sessions = self._drain.is_active, self._drain.sessions
        return {"type": "state", "draining": draining, "sessions": sessions, "urls": urls}

    def _stop_took_too_long(self) -> None:
        launch.report("the server did not stop in time")
        self._restarter.exit_code = 0

    def _reload(self) -> None:
        """Ask the server to reload. If there is none, the next one reads everything anyway."""
        if self._service_manager.is_stopping:
            return
        if self._restarter.server is None:
            self._service_manager.reloading(answers=0)
        elif self._send(self._restarter.server, "reload"):
            self._service_manager.reloading(answers=1)

    def _send(self, server: ServerProcess, kind: str) -> bool:
        try:
            server.send({"type": kind})
        except OSError as error:
            launch.report(f"the server cannot be asked to {kind}: {error}")
            return False
        return True

    # The server.

    def _start_server(self, registration: Sequence[int], take_over: bool) -> ServerProcess:
        descriptors = [descriptor for listener in self._listeners for descriptor in listener.descriptors]
        descriptors += [*registration, *([self._record.descriptor] if self._record else [])]
        hello = {
            "type": "hello",
            "version": VERSION,
            "instance": self._instance,
            "supervisorPid": os.getpid(),
            "nofileSoft": self._nofile_soft,
            "beatSeconds": self._service_manager.beat_seconds,
            "takeOver": take_over,
            "record": self._record is not None,
            "listeners": [{"kind": listener.kind, "url": listener.url} for listener in self._listeners],
        }
        if take_over:
            launch.enter_again(self._folder)
        try:
            server = self._first or server_process.start(self._command, self._environment, self._instance)
        finally:
            os.chdir("/")  # the launch folder may be unmounted while the service runs
        self._first = None
        self._drain.server_lost()
        try:
            server.send_hello(hello, descriptors)
            if self._drain.is_active:
                server.send(self._drain.message())
        except (BrokenPipeError, ConnectionResetError):
            return server  # it has ended already
        except OSError:
            server.discard()
            raise
        return server

    def _handle_message(self, server: ServerProcess, message: Mapping[str, object]) -> None:
        kind = message["type"]
        if kind == "ready" and not server.ready:
            server.ready = True
            grace = message.get("drainGraceSeconds")
            self._drain_grace = float(grace) if isinstance(grace, int | float) else 0.0
            self._announce()
        elif kind == "sessions":
            count = message["count"]
            assert isinstance(count, int)
            self._drain.report(count)
        elif kind == "beat":
            self._service_manager.beat()
        elif kind == "reloaded":
            if message["error"] is not None:
                launch.report(f"reload failed, nothing has changed: {message['error']}")
            self._service_manager.reloaded(message["error"])
        elif kind == "upgrading":
            server.upgrading = True
            self._loop.call_in(UPGRADE_GRACE_S, self._upgrade_took_too_long)
        elif kind == "stopping":
            server.stopping = True
            self._service_manager.stopping()

    def _upgrade_took_too_long(self) -> None:
        """Kill a server that does not exit: a thread may hang in the kernel, while new clients wait."""
        server = self._restarter.server
        if server is not None and server.upgrading:
            launch.report("the server did not exit in time for the new one")
            server.kill()

    def _announce(self) -> None:
        """Notify the service manager, and the first time print the bound addresses, one per line."""
        if not self._printed:
            self._printed = True
            # If stdio is served, descriptor 1 is stderr by now.
            urls = [f"{listener.url}\n" for listener in self._listeners if listener.kind != "stdio"]
            try:
                remaining = "".join(urls).encode(errors="surrogateescape")
                while remaining:
                    remaining = remaining[os.write(1, remaining) :]
            except OSError as error:
                launch.report(f"the addresses cannot be printed: {error.strerror}")
        count = self._restarter.count
        restarts = f" (server restarts: {count})" if count else ""
        self._service_manager.ready(
            f"Serving on {' '.join(listener.url for listener in self._listeners)}{restarts}"
        )

    def _name_survivors(self, survivors: Sequence[int]) -> None:
        if survivors:
            launch.report(f"processes that could not be killed: {', '.join(map(str, survivors))}")
