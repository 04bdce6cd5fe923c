"""The protocol of sandbox backends: what makes the sandbox of a command.

    Sandboxes ── View ──▶ unstatable ── Sandbox ──▶ wrap ──▶ LaunchSpec ──▶ spawn

The daemon reads the policy and the disk, and decides the mounts, namespaces and system calls of a sandbox. A
backend only makes them so. bubblewrap and Landlock are in `backends.py`. A package adds another one as an
entry point of the group `execserver.sandbox_backends`, which the setting `sandbox_backend` names
(docs/how-to/sandbox-backends.md).

No backend is used on its word: the daemon runs trials in sandboxes made by it, and judges them
(`diagnostics/proof.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from execserver.launch_spec import LaunchSpec
from execserver.sandbox import seccomp
from execserver.sandbox.view import View

ENTRY_POINTS = "execserver.sandbox_backends"


class Sources(msgspec.Struct, frozen=True):
    """Files of the host that are mounted: an empty file and folder of mode 000 as masks, and device nodes."""

    empty_file: str
    empty_folder: str
    devices: str | None = None
    """The folder with the device nodes (`devices.NODES`); None for those of the host."""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of one command, for a backend to make."""

    view: View
    """The file system, and whether there are namespaces and a network."""

    sources: Sources
    """What the masks and devices of the view are."""

    bash: str | None = None
    """For commands whose `argv[0]` is not their program: a bash that is visible inside (`named_line`)."""

    setsid: str | None = None
    """For commands with a terminal: a `setsid` that is visible inside."""

    held: Mapping[str, int] = {}
    """Descriptors of writable mounts by path, for backends that mount descriptors. They belong to the result
    of `wrap`, in its `passed`."""

    made: frozenset[str] = frozenset()
    """The view's mount points that are empty folders made by the daemon."""

    folder: str | None = None
    """A private folder for files of this sandbox, which the daemon removes after it. Only for backends from
    entry points."""

    dies_with_parent: bool = False
    """Whether the command is killed when the launcher's parent ends, if the backend can do that: fs workers.
    Commands outlive the server."""

    gated: bool = False
    """Whether the command waits for the `gate` of the result, if the backend can do that."""

    def seccomp_program(
        self, *, tracing: bool = False, namespaces_denied: bool = True, unix_sockets: bool | None = None
    ) -> bytes:
        """The seccomp filter that the command must have from its first instruction, as an array of `struct
        sock_filter`.

        Args:
            tracing: whether the command may trace its own processes while it has the network. Only if no
                process without the filter, and no program file of the host, can be reached by it.
            namespaces_denied: whether the filter refuses to make namespaces and mounts, because nothing else
                does.
            unix_sockets: whether the command may make Unix sockets while it has the network. Only if the
                mounts of the view hide the host's. None: unless `namespaces_denied`.

        Raises:
            seccomp.UnknownArchitectureError: there is no filter for this machine.
        """
        return seccomp.program(
            network=self.view.network,
            files_limited=self.view.base != "host",
            tracing=tracing,
            namespaces_denied=namespaces_denied,
            unix_sockets=unix_sockets,
            managed=self.view.managed_network,
        )


class Inspection(msgspec.Struct, frozen=True):
    """What a backend has found on this machine."""

    reason: str = ""
    """Why it cannot work here; empty if it may."""

    fix: str = ""
    """What the operator can do about it."""

    files: tuple[str, ...] = ()
    """The programs and files that it runs and reads. No sandbox can write to them, and if one of them is
    replaced, the backend is tried again."""

    inside: tuple[str, ...] = ()
    """Those of its programs that have to be visible inside."""


class BackendError(Exception):
    """A backend cannot be used: it is missing, or a method raised, hung or returned something else. The text
    is a clause for an error message.
    """


class SandboxBackend(Protocol):
    """Makes sandboxes. All methods may be called from any thread, also at the same time."""

    namespaces: bool
    """Whether a command gets pid, mount, user, IPC and network namespaces of its own. If so, the first
    process of the pid namespace is not the command but its parent, and the launcher reports that process's
    pid (`LaunchSpec.status`)."""

    def inspect(self) -> Inspection:
        """Look at what is installed, without starting anything that lasts. May block for a second."""

    def unstatable(self, view: View) -> str | None:
        """Why no sandbox with this view can be made, as a clause for an error message; None if it can."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        """The launch that runs a command in a sandbox, as if it ran without: the same arguments, environment,
        working directory, streams, and exit code (128 and the number of the signal that killed it).

        Args:
            command: the command.
            sandbox: a sandbox whose view is not `unstatable`.

        Returns:
            A launch with new descriptors, which belong to the caller. With namespaces it has a `status`.

        Raises:
            OSError: no descriptor is left.
            ValueError: an argument, variable or path cannot be passed.
        """


def needs_own_name(command: LaunchSpec) -> bool:
    """Whether the program's `argv[0]` differs from the path or name by which the program is found."""
    name = command.arguments[0]
    return name != command.program and not _is_bare_name(command, name)


def _is_bare_name(command: LaunchSpec, name: str) -> bool:
    # A name that begins with a hyphen would be taken for an option of bubblewrap or setsid.
    by_name = name == os.path.basename(command.program) and "PATH" in command.environment
    return by_name and not name.startswith("-")


def named_line(command: LaunchSpec, bash: str | None) -> list[str]:
    """The command line for a launcher that looks programs up by `argv[0]`, as bubblewrap does before 0.9.

    Args:
        command: the command.
        bash: sets another `argv[0]` than the program's (`needs_own_name`).
    """
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
