"""The daemon's backends: bubblewrap, the limits of a thread (seccomp and Landlock), and macOS's Seatbelt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execserver.launch_spec import LaunchSpec
from execserver.sandbox import bubblewrap
from execserver.sandbox.backend import Inspection, Sandbox, SandboxBackend, named_line
from execserver.sandbox.bare_roots import WatchedRoots
from execserver.sandbox.bubblewrap import SealedProgram, memory_file
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.entry_points import SandboxFolder, close_launch
from execserver.sandbox.mount_points.registry import Lease
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import Policy
from execserver.sandbox.seccomp_numbers import ARCHITECTURES
from execserver.sandbox.thread_limits import deny_new_privileges, install_filter
from execserver.sandbox.view import View

if TYPE_CHECKING:
    from execserver.sandbox import seatbelt

# Landlock and Seatbelt are imported where they are used: most daemons use neither.


class BackendConfinement(Confinement):
    """One command's sandbox, made by a backend.

    Args:
        policy: the policy of the command.
        cwd: its working directory.
        name: the backend's name.
        backend: wraps the command.
        sandbox: the sandbox to make.
        lease: its mount points.
        watched: its folders that a command could turn into repositories.
    """

    def __init__(
        self,
        policy: Policy,
        cwd: str,
        name: str,
        backend: SandboxBackend,
        sandbox: Sandbox,
        lease: Lease | None = None,
        watched: WatchedRoots | None = None,
    ) -> None:
        super().__init__(policy, cwd, lease, watched)
        self.backend = name
        self.namespaces = backend.namespaces and sandbox.view.namespaces
        self._maker = backend
        self._sandbox = sandbox

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """See `Confinement`."""
        sandbox = replace(self._sandbox, dies_with_parent=dies_with_parent, gated=gated)
        wrapped = self._maker.wrap(command, sandbox)
        self._sandbox = replace(self._sandbox, held={})
        return wrapped

    def release(self) -> None:
        """See `Confinement`."""
        held = self._sandbox.held
        self._sandbox = replace(self._sandbox, held={})
        for fd in held.values():
            os.close(fd)
        super().release()


class PreparedConfinement(BackendConfinement):
    """One command's sandbox by a backend from an entry point, which may block: it has been called already.

    Args:
        policy: as for the base class, like `cwd`, `name`, `backend`, `sandbox`, `lease` and `watched`.
        cwd: see there.
        name: see there.
        backend: see there.
        sandbox: see there.
        lease: see there.
        watched: see there.
        launch: the result of `backend.wrap` for the command.
        folder: the folder of this sandbox.
    """

    def __init__(
        self,
        policy: Policy,
        cwd: str,
        name: str,
        backend: SandboxBackend,
        sandbox: Sandbox,
        lease: Lease | None,
        watched: WatchedRoots | None,
        *,
        launch: LaunchSpec,
        folder: SandboxFolder,
    ) -> None:
        super().__init__(policy, cwd, name, backend, sandbox, lease, watched)
        self._launch: LaunchSpec | None = launch
        self._folder = folder

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """See `Confinement`. Only once, for the command that it was prepared for.

        Raises:
            ValueError: it has been wrapped before, or limits need a folder that it makes writable.
        """
        _require_read_only(self.backend, self._sandbox.view, command)
        launch, self._launch = self._launch, None
        if launch is None:
            raise ValueError("this sandbox has been used")
        return replace(launch, spawn=command.spawn, passed=(*launch.passed, *self._folder.take_lock()))

    @property
    def releases_at_once(self) -> bool:
        """See `Confinement`."""
        return False

    def release(self) -> None:
        """See `Confinement`."""
        launch, self._launch = self._launch, None
        if launch is not None:
            close_launch(launch)
        self._folder.release()
        super().release()


class Bubblewrap(SandboxBackend):
    """Separate namespaces, made by bubblewrap.

    Args:
        program: its path.
        sealed: the copy to run instead of the program.
    """

    namespaces = True

    def __init__(self, program: str, sealed: SealedProgram | None = None) -> None:
        self._program = program
        self.sealed = sealed

    def inspect(self) -> Inspection:
        """See `SandboxBackend`. `diagnostics/probe.py` has asked for version and options before."""
        return Inspection(files=(self._program,))

    def unstatable(self, view: View) -> str | None:
        """See `SandboxBackend`."""
        return None

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        """See `SandboxBackend`."""
        namespaces = sandbox.view.namespaces
        # Without a copy, /proc/1/exe in the sandbox leads to the host's program: tracing is refused then.
        seccomp = sandbox.seccomp_program(tracing=self.sealed is not None, namespaces_denied=False)
        options = bubblewrap.options(
            sandbox.view,
            sandbox.sources,
            root_user=os.geteuid() == 0,
            held=sandbox.held,
            made=sandbox.made,
        )
        opened: list[int] = []
        gate: list[int] = []
        try:
            program = memory_file(seccomp)
            opened.append(program)
            status = memory_file(b"")
            opened.append(status)
            status_inside = os.dup(status)
            opened.append(status_inside)
            if sandbox.gated and namespaces:
                gate += os.pipe2(os.O_CLOEXEC)
                opened += gate
                gate.append(os.dup(gate[1]))
                opened.append(gate[2])
            # A program of the daemon has a session already. The group of its launcher must have all of its
            # processes: bubblewrap asks to end with its parent only after it has begun the new session.
            new_session = not sandbox.dies_with_parent and (namespaces or not command.tty)
            line = self._command_line(command, sandbox)
            inside = bubblewrap.SandboxedCommand(
                line, command.cwd, command.environment, new_session, sandbox.dies_with_parent
            )
            ends = (gate[0], gate[1]) if gate else None
            made = [*options, *bubblewrap.read_only(sandbox.view, command.read_only)]
            arguments = bubblewrap.arguments(made, inside, program, status_inside, ends)
            # Last, so that nothing can fail between this and the return.
            arguments_file = memory_file(arguments)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        devices = sandbox.sources.devices
        return replace(
            command,
            program=self._program if self.sealed is None else self.sealed.path,
            arguments=("bwrap", "--args", str(arguments_file), "--", *line),
            environment={},
            passed=(program, status_inside, arguments_file, *gate[:2], *sandbox.held.values()),
            status=status,
            gate=gate[2] if gate else None,
            null=None if devices is None else f"{devices}/null",
            takes_terminal=command.tty,
        )

    def _command_line(self, command: LaunchSpec, sandbox: Sandbox) -> Sequence[str]:
        line = named_line(command, sandbox.bash)
        # The command takes the terminal inside, so the terminal's signals never reach the launcher.
        return [sandbox.setsid, "-c", *line] if command.tty and sandbox.setsid is not None else line


def _require_read_only(backend: str, view: View, command: LaunchSpec) -> None:
    """Raise ValueError if a command with limits may write to its control groups, and so leave them."""
    if bubblewrap.read_only(view, command.read_only):
        raise ValueError(
            f"a sandbox of the backend {backend} that can write to the control groups in "
            f"{', '.join(command.read_only)} cannot have limits: grant less writing"
        )


class _ThreadLimits(SandboxBackend):
    """Limits of the spawning thread. Processes and signals are the host's."""

    namespaces = False

    def inspect(self) -> Inspection:
        """See `SandboxBackend`."""
        if (machine := os.uname().machine) not in ARCHITECTURES:
            reason = f"there is no seccomp filter for the architecture {machine!r}"
            return Inspection(reason, "run the daemon on another architecture")
        return Inspection()


class SeccompOnly(_ThreadLimits):
    """A seccomp filter, which limits only the network."""

    def unstatable(self, view: View) -> str | None:
        """See `SandboxBackend`."""
        return None if view.base == "host" else "a seccomp filter cannot limit files"

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        """See `SandboxBackend`."""
        program = sandbox.seccomp_program(namespaces_denied=False)

        def limit(_terminal: str | None, _gate: str | None = None) -> None:
            deny_new_privileges()
            install_filter(program)

        return replace(command, limit=limit)


class Landlock(_ThreadLimits):
    """Landlock rules and a seccomp filter.

    Args:
        own: the daemon's own files.
    """

    def __init__(self, own: DaemonPaths) -> None:
        self._own = own

    def inspect(self) -> Inspection:
        """See `SandboxBackend`."""
        from execserver.sandbox import landlock

        reason, _, fix = (landlock.unavailable() or "").partition("; ")
        return Inspection(reason, fix)

    def unstatable(self, view: View) -> str | None:
        """See `SandboxBackend`."""
        from execserver.sandbox import landlock

        if view.base == "host":
            return "Landlock is not needed where files are not limited"
        return landlock.unstatable(view, self._own)

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        """See `SandboxBackend`."""
        _require_read_only("landlock", sandbox.view, command)
        # `dies_with_parent` has no meaning here: the parent would be the thread.
        program = sandbox.seccomp_program(tracing=True)

        def limit(terminal: str | None, gate: str | None = None) -> None:
            from execserver.sandbox import landlock

            with landlock.Ruleset.of_view(sandbox.view, own=self._own, terminal=terminal, gate=gate) as rules:
                rules.restrict_self(program)

        return replace(command, limit=limit)


class SeatbeltConfinement(Confinement):
    """Confinement by macOS. Untested on macOS (`seatbelt.py`)."""

    backend = "seatbelt"
    namespaces = False

    def __init__(self, policy: Policy, cwd: str, profile: seatbelt.Profile) -> None:
        super().__init__(policy, cwd, None)
        self._profile = profile

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """See `Confinement`."""
        from execserver.sandbox import seatbelt

        line = seatbelt.arguments(self._profile, [command.program, *command.arguments[1:]])
        return replace(
            command,
            program=seatbelt.PROGRAM,
            arguments=tuple(line),
            environment={**command.environment, **seatbelt.ENVIRONMENT},
        )
