"""Runs short scripts in real sandboxes for a policy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from execserver.launch_spec import LaunchSpec
from execserver.sandbox import state_folder
from execserver.sandbox.backend import Sandbox, Sources
from execserver.sandbox.backends import BackendConfinement, Bubblewrap
from execserver.sandbox.bare_roots import BareRoots, WatchedRoots
from execserver.sandbox.devices import Devices
from execserver.sandbox.mount_points.registry import Lease, MountPoints
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import Access, Glob, Policy, Rule, depth
from execserver.sandbox.view import RequiredPaths, View, build_view

READ, WRITE, DENY = Access.READ, Access.WRITE, Access.DENY

BUBBLEWRAP = Bubblewrap("/usr/bin/bwrap")

PATH = "/usr/local/bin:/usr/bin:/bin"


def policy(
    *rules: tuple[str | Path, Access] | Rule,
    network: bool = False,
    minimal: bool = False,
    globs: Sequence[Glob] = (),
    glob_depth: int | None = None,
) -> Policy:
    """A policy that limits files; its rules may be given in any order."""
    made = [rule if isinstance(rule, Rule) else Rule(str(rule[0]), rule[1]) for rule in rules]
    made.sort(key=lambda rule: (depth(rule.path), rule.path))
    return Policy(False, network, tuple(made), minimal, tuple(globs), glob_depth)


def workspace(folder: str | Path, *more: tuple[str | Path, Access] | Rule, network: bool = False) -> Policy:
    """A policy with everything readable and one folder writable."""
    return policy(("/", READ), (folder, WRITE), *more, network=network)


def deny(pattern: str) -> Glob:
    return Glob(pattern, DENY)


@dataclass(frozen=True)
class Ran:
    """The result of a script."""

    status: int
    output: str


class Rig:
    """A state folder, and sandboxes that use it."""

    def __init__(self, state: Path) -> None:
        self.state = str(state)
        state.mkdir(mode=0o700)
        self.sources = Sources(
            state_folder.empty_file(self.state),
            state_folder.empty_folder(self.state),
            Devices(self.state).folder(),
        )
        self.mount_points = MountPoints(self.state)
        self.bare_roots = BareRoots()

    @property
    def own(self) -> DaemonPaths:
        return DaemonPaths((self.state,))

    def build_view(self, limits: Policy, *, cwd: str | None = "/", own: DaemonPaths | None = None) -> View:
        return build_view(limits, own or self.own, RequiredPaths(cwd, "/bin/sh"))

    def confine(
        self,
        limits: Policy,
        view: View,
        cwd: str | Path = "/",
        *,
        lease: Lease | None = None,
        watched: WatchedRoots | None = None,
    ) -> BackendConfinement:
        """The confinement of one command, by bubblewrap."""
        sandbox = Sandbox(view=view, sources=self.sources, bash="/bin/bash", setsid="/usr/bin/setsid")
        return BackendConfinement(limits, str(cwd), "bubblewrap", BUBBLEWRAP, sandbox, lease, watched)

    def run(
        self,
        limits: Policy,
        script: str,
        *,
        cwd: str | Path = "/",
        own: DaemonPaths | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] | None = None,
        program: str = "/bin/sh",
    ) -> Ran:
        """Run a shell script, or a command line, under a policy; nothing is left of it afterwards."""
        view = self.build_view(limits, cwd=str(cwd), own=own)
        lease = self.mount_points.acquire(view.mount_points) if view.mount_points else None
        watched = self.bare_roots.watch(view.bare_roots)
        confinement = self.confine(limits, view, cwd, lease=lease, watched=watched)
        try:
            wrapped = confinement.wrap(
                LaunchSpec(
                    program,
                    arguments or ("sh", "-c", script),
                    str(cwd),
                    {"PATH": PATH} if environment is None else environment,
                    tty=False,
                )
            )
            try:
                done = subprocess.run(
                    wrapped.arguments,
                    executable=wrapped.program,
                    env=dict(wrapped.environment),
                    pass_fds=wrapped.passed,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=60,
                    check=False,
                )
            finally:
                for fd in (*wrapped.passed, wrapped.status):
                    assert fd is not None
                    os.close(fd)
        finally:
            confinement.release()
        return Ran(done.returncode, os.fsdecode(done.stdout))

    def close(self) -> None:
        self.mount_points.close()
        self.bare_roots.close()


def same_things(folder: Path) -> dict[str, int]:
    """The inodes of all files in a folder by path, to check that none has changed."""
    return {
        os.path.join(where, name): os.lstat(os.path.join(where, name)).st_ino
        for where, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }
