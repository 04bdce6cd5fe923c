"""Launchers of fs workers for tests: without a sandbox, and in one of bubblewrap."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from execserver.fsworker.interpreter import command
from execserver.fsworker.process import WorkerProcess, spawn
from execserver.sandbox import seccomp
from execserver.sandbox.policy import Access, Glob, Policy, Rule


def policy_for(*writable: Path, deny: Sequence[str] = ()) -> Policy:
    """Everything can be read, some folders can be written, some patterns must not be read."""
    rules = (Rule("/", Access.READ), *(Rule(str(path), Access.WRITE) for path in writable))
    return Policy(
        unrestricted=False,
        network=False,
        rules=rules,
        globs=tuple(Glob(pattern, Access.DENY) for pattern in deny),
    )


class BareLauncher:
    """Starts workers without any sandbox, and remembers them."""

    def __init__(self) -> None:
        self.started: list[WorkerProcess] = []
        self.policies: list[Policy] = []

    async def __call__(self, policy: Policy) -> WorkerProcess:
        """The pool's `Launch`."""
        process = self.start(policy)
        self.started.append(process)
        self.policies.append(policy)
        return process

    def start(self, policy: Policy) -> WorkerProcess:
        return spawn(command())


class BubblewrapLauncher(BareLauncher):
    """Starts workers under a view of the host that is read-only but for the policy's folders."""

    def start(self, policy: Policy) -> WorkerProcess:
        binds: list[str] = []
        for rule in policy.rules:
            if rule.access is Access.WRITE:
                binds += ("--bind", rule.path, rule.path)
        return confined(("--ro-bind", "/", "/", "--dev", "/dev", *binds))


def confined(view: Sequence[str]) -> WorkerProcess:
    """A worker in bubblewrap with the filter of a sandbox without network."""
    program = os.memfd_create("seccomp")
    try:
        os.write(program, seccomp.program(network=False, files_limited=True))
        os.lseek(program, 0, os.SEEK_SET)
        arguments = (
            _bubblewrap(), "--new-session", "--die-with-parent", *view, "--unshare-all", "--proc", "/proc",
            "--cap-drop", "ALL", "--seccomp", str(program), "--",
        )  # fmt: skip
        return spawn([*arguments, *command()], inherit=(program,))
    finally:
        os.close(program)


@cache
def bubblewrap_works() -> bool:
    """Whether this machine lets us make sandboxes."""
    path = shutil.which("bwrap")
    if path is None:
        return False
    trial = [path, "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc", "--", "/bin/true"]
    return subprocess.run(trial, check=False, capture_output=True, timeout=30).returncode == 0


def _bubblewrap() -> str:
    path = shutil.which("bwrap")
    assert path is not None
    return path
