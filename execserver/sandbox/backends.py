"""The backends: bubblewrap, the limits of a thread (seccomp and Landlock), and macOS's Seatbelt."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from execserver.launch_spec import LaunchSpec
from execserver.sandbox import bubblewrap, seccomp
from execserver.sandbox.bare_roots import WatchedRoots
from execserver.sandbox.bubblewrap import SealedProgram, memory_file
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.mount_points.registry import Lease
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import Policy
from execserver.sandbox.thread_limits import deny_new_privileges, install_filter
from execserver.sandbox.view import View

if TYPE_CHECKING:
    from execserver.sandbox import seatbelt

# Landlock and Seatbelt are imported where they are used: most daemons use neither.


class HostPrograms(msgspec.Struct, frozen=True):
    """Programs of the host that start a command inside a sandbox."""

    bubblewrap: str
    setsid: str | None
    bash: str | None
    sealed: SealedProgram | None = None
    """The copy of bubblewrap to run instead of the program."""


class BubblewrapConfinement(Confinement):
    """Confinement in separate namespaces, by bubblewrap."""

    backend = "bubblewrap"

    def __init__(
        self,
        policy: Policy,
        view: View,
        cwd: str,
        lease: Lease | None,
        tools: HostPrograms,
        sources: bubblewrap.Sources,
        held: Mapping[str, int] | None = None,
        made: Collection[str] = (),
        watched: WatchedRoots | None = None,
    ) -> None:
        super().__init__(policy, cwd, lease, watched)
        self._held = dict(held or {})
        self.namespaces = view.namespaces
        self._view = view
        self._tools = tools
        self._null = None if sources.devices is None else f"{sources.devices}/null"
        self._filter = seccomp.program(
            network=policy.network,
            files_limited=policy.limits_files,
            # Without a copy, /proc/1/exe in the sandbox leads to the host's program: tracing is refused then.
            tracing=tools.sealed is not None,
        )
        self._options = bubblewrap.options(
            view,
            sources,
            root_user=os.geteuid() == 0,
            held=self._held,
            made=made,
        )

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """See `Confinement`."""
        opened: list[int] = []
        gate: list[int] = []
        try:
            program = memory_file(self._filter)
            opened.append(program)
            status = memory_file(b"")
            opened.append(status)
            status_inside = os.dup(status)
            opened.append(status_inside)
            if gated and self.namespaces:
                gate += os.pipe2(os.O_CLOEXEC)
                opened += gate
                gate.append(os.dup(gate[1]))
                opened.append(gate[2])
            new_session = self.namespaces or not command.tty
            line = self._command_line(command)
            inside = bubblewrap.SandboxedCommand(
                line, command.cwd, command.environment, new_session, dies_with_parent
            )
            ends = (gate[0], gate[1]) if gate else None
            made = [*self._options, *bubblewrap.read_only(self._view, command.read_only)]
            arguments = bubblewrap.arguments(made, inside, program, status_inside, ends)
            # Last, so that nothing can fail between this and the return.
            arguments_file = memory_file(arguments)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        sealed = self._tools.sealed
        return replace(
            command,
            program=self._tools.bubblewrap if sealed is None else sealed.path,
            arguments=("bwrap", "--args", str(arguments_file), "--", *line),
            environment={},
            passed=(program, status_inside, arguments_file, *gate[:2], *self._take_held()),
            status=status,
            gate=gate[2] if gate else None,
            null=self._null,
            takes_terminal=command.tty,
        )

    def release(self) -> None:
        """See `Confinement`."""
        for fd in self._take_held():
            os.close(fd)
        super().release()

    def _take_held(self) -> tuple[int, ...]:
        held, self._held = tuple(self._held.values()), {}
        return held

    def _command_line(self, command: LaunchSpec) -> Sequence[str]:
        line = _named(command, self._tools.bash)
        # The command takes the terminal inside, so the terminal's signals never reach the launcher.
        return [self._tools.setsid, "-c", *line] if command.tty and self._tools.setsid is not None else line


class ThreadConfinement(Confinement):
    """Confinement by limits of the spawning thread: seccomp, and Landlock if files are limited.

    Processes and signals are the host's.
    """

    namespaces = False

    def __init__(self, policy: Policy, view: View, cwd: str, own: DaemonPaths) -> None:
        super().__init__(policy, cwd, None)
        self._view = view
        self.backend = "landlock" if policy.limits_files else "seccomp"
        self._own = own
        self._filter = seccomp.program(
            network=policy.network,
            files_limited=policy.limits_files,
            namespaces_denied=policy.limits_files,
        )

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """See `Confinement`."""
        # `dies_with_parent` has no meaning here: the parent would be the thread.
        return replace(command, limit=self._limit)

    def _limit(self, terminal: str | None, gate: str | None = None) -> None:
        if not self.policy.limits_files:
            deny_new_privileges()
            install_filter(self._filter)
            return
        from execserver.sandbox import landlock

        with landlock.Ruleset.of_view(self._view, own=self._own, terminal=terminal, gate=gate) as rules:
            rules.restrict_self(self._filter)


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


def needs_own_name(command: LaunchSpec) -> bool:
    """Whether the program's `argv[0]` differs from the path or name by which the program is found."""
    name = command.arguments[0]
    return name != command.program and not _is_bare_name(command, name)


def _is_bare_name(command: LaunchSpec, name: str) -> bool:
    # A name that begins with a hyphen would be taken for an option of bubblewrap or setsid.
    by_name = name == os.path.basename(command.program) and "PATH" in command.environment
    return by_name and not name.startswith("-")


def _named(command: LaunchSpec, bash: str | None) -> Sequence[str]:
    """The command line that sets `argv[0]`, which bubblewrap cannot do before 0.9."""
    if needs_own_name(command) and bash is not None:
        return [
            bash,
            "-p",  # bash must not run the file that `BASH_ENV` names
            "-c",
            'exec -a "$0" -- "$@"',
            command.arguments[0],
            command.program,
            *command.arguments[1:],
        ]
    name = command.arguments[0] if _is_bare_name(command, command.arguments[0]) else command.program
    return [name, *command.arguments[1:]]
