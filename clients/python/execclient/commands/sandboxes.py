"""The sandbox of a command that `--sandbox` asks for, at an executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from execclient import Executor, arguments
from execclient.commands.failures import CommandExit, print_message
from execclient.connection.connection import Json

if TYPE_CHECKING:
    from execclient.govern.sandbox import SandboxPolicy

_WAYS_OUT = {
    "read-only": "; --sandbox workspace-write allows to write to the working directory and the folders for "
    "temporary files, and with --writable DIR to another one",
    "workspace-write": "; --writable DIR allows to write to a directory",
}
"""The options with which a sandbox allows more."""


async def require_writable(executor: Executor, policy: SandboxPolicy | None) -> None:
    """Check that the folders of `--writable` exist: the daemon would ignore a missing one.

    Raises:
        CommandExit: one is missing.
    """
    for path in getattr(policy, "writable_roots", ()):
        if not await executor.fs.exists(path):
            raise CommandExit(f"--writable: {path}: no such directory on the daemon's machine")


async def file_sandbox(
    executor: Executor, policy: SandboxPolicy | None, workspace: str
) -> Mapping[str, Json] | None:
    """The sandbox of file requests, for the wire; None for none.

    Args:
        executor: the executor.
        policy: the policy of the command line.
        workspace: the workspace, absolute. In place of `/` it is the first folder of `--writable`.

    Raises:
        CommandExit: such a folder is missing, or everything would be writable.
    """
    await require_writable(executor, policy)
    if not workspace.strip("/"):
        workspace = next(iter(getattr(policy, "writable_roots", ())), workspace)
    try:
        return arguments.sandbox(policy, workspace)
    except ValueError as error:
        raise CommandExit(
            f"--sandbox: the workspace would be {workspace}, and everything writable: name the directories "
            "that may be written with --writable"
        ) from error


def report_denial(denial: Mapping[str, Json] | None, sandbox: str) -> None:
    """Report what the sandbox denied, if the daemon has evidence (`docs/protocol.md`, X7)."""
    for evidence in (denial or {}).get("evidence", ())[:1]:
        if "protectedPath" in evidence:
            path = evidence["protectedPath"]
            denied = (
                f"{path} is protected, because programs outside of the sandbox run its hooks or trust its "
                f"settings; once it exists, --writable {path} allows it"
            )
        else:
            denied = {
                "network": "the network; --network allows it, --network-allow HOST one host",
                "signal": "a system call",
            }.get(evidence["kind"], f"{evidence.get('path', 'a file')}{_WAYS_OUT.get(sandbox, '')}")
        print_message(f"likely denied by the sandbox ({sandbox}): {denied}")
