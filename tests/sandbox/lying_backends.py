"""Sandbox backends that do not confine, each in its own way, and one that does.

A test installs this file as a package.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from msgspec.structs import replace

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.backend import Inspection, Sandbox
from execserver.sandbox.backends import Bubblewrap
from execserver.sandbox.view import View

HERE = Path(__file__).parent
(HERE / "was loaded").touch()


class Honest:
    """Has bubblewrap make its sandboxes, by a script beside this file."""

    namespaces = True

    def __init__(self) -> None:
        self.launcher = HERE / "launcher"
        if not self.launcher.exists():
            self.confine()

    def confine(self) -> None:
        """Write the script."""
        self.launcher.write_text(f'#!/bin/sh\nexec {shutil.which("bwrap")} "$@"\n')
        self.launcher.chmod(0o755)

    def inspect(self) -> Inspection:
        return Inspection(files=(str(self.launcher),))

    def unstatable(self, view: View) -> str | None:
        return None

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return Bubblewrap(str(self.launcher)).wrap(command, sandbox)


class Unconfined(Honest):
    """Runs the command as it is."""

    namespaces = False

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return command


class FilesOnly(Honest):
    """Leaves the network on."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return super().wrap(command, replace(sandbox, view=replace(sandbox.view, network=True)))


class NetworkOnly(Honest):
    """Leaves all files as they are."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return super().wrap(command, replace(sandbox, view=replace(sandbox.view, base="write")))


class Readable(Honest):
    """Leaves out what is hidden."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return super().wrap(
            command, replace(sandbox, view=replace(sandbox.view, mounts=sandbox.view.mounts[:1]))
        )


class Leaking(Honest):
    """Passes a descriptor of the host's root folder on."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        launch = super().wrap(command, sandbox)
        return replace(launch, passed=(*launch.passed, os.open("/", os.O_RDONLY | os.O_CLOEXEC)))


class Inheriting(Honest):
    """Opens such a descriptor in the daemon, so that every child gets it."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        os.set_inheritable(os.open("/", os.O_RDONLY), True)
        return super().wrap(command, sandbox)


class Telling(Honest):
    """Gives the command the variables of the daemon."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return super().wrap(replace(command, environment={**os.environ, **command.environment}), sandbox)


class Pretending(Honest):
    """Runs nothing, and reports what the program would have reported."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        launch = super().wrap(command, sandbox)
        return replace(launch, program="/bin/echo", arguments=("echo", '{"open": "", "closed": "EROFS"}'))


class Silent(Honest):
    """Has namespaces, and does not say where the command is."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        launch = super().wrap(command, sandbox)
        assert launch.status is not None
        os.close(launch.status)
        return replace(launch, status=None)


class Raising(Honest):
    """Raises an error that is not its protocol's."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        raise RuntimeError("no such luck")


class Refusing(Honest):
    """Raises an error of its protocol, always."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        raise ValueError("nothing can be passed")


class Crashing(Honest):
    """Its launcher ends at once."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        line = ("sh", "-c", "echo out of luck >&2; kill -SEGV $$")
        return replace(super().wrap(command, sandbox), program="/bin/sh", arguments=line)


class Hanging(Honest):
    """Does not return."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        time.sleep(60)
        return command


class HangingLater(Honest):
    """Its launcher does not end."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return replace(super().wrap(command, sandbox), program="/bin/sleep", arguments=("sleep", "600"))


class Nothing(Honest):
    """Returns no launch."""

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        return None  # type: ignore[return-value]


class Incomplete:
    """Lacks a method."""

    namespaces = True

    def unstatable(self, view: View) -> str | None:
        return None

    wrap = Honest.wrap


class Broken(Honest):
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("a file is missing")


class Fickle(Honest):
    """Confines what it is tried with, and then nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.trials = 2

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        self.trials -= 1
        if self.trials >= 0:
            return super().wrap(command, sandbox)
        return replace(super().wrap(command, sandbox), program=command.program, arguments=command.arguments)
