"""Tools for agents without a sandbox: the executor of a `ShellTool`, the editor of an `ApplyPatchTool`."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from agents import (
    ApplyPatchOperation,
    ApplyPatchResult,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    apply_diff,
)

from execclient import arguments
from execclient.arguments import AnyPath
from execclient.client import Executor
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.errors import NotFound
from execclient.govern.sandbox import SandboxPolicy, WorkspaceWrite
from execclient.patch import Edit, Plan, apply


class ExecServerShell:
    """Runs the commands of a `ShellTool`: `ShellTool(executor=ExecServerShell(executor))`.

    Each command runs in a shell of its own, `sh -c`, one after the other. After one that reaches its time
    limit the others are left out. Cancelling kills the command with all its descendants.

    Args:
        executor: runs them.
        cwd: their working directory, and the workspace of the sandbox; the daemon's by default.
        sandbox: what they may touch; None for everything.
        timeout: seconds for each command, if the model sets no limit; None for no limit.
        env: variables that are added to the inherited ones.
        inherit: the daemon's variables to inherit.
        max_output_bytes: output kept of each stream: half from the beginning, half from the end.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        cwd: AnyPath | None = None,
        sandbox: SandboxPolicy | None = WorkspaceWrite(),  # noqa: B008 - a value
        timeout: float | None = None,
        env: Mapping[str, AnyPath] | None = None,
        inherit: Inherit | EnvironmentPolicy = "core",
        max_output_bytes: int | None = 1 << 20,
    ) -> None:
        self._executor = executor
        self._cwd = cwd
        self._sandbox = sandbox
        self._timeout = timeout
        self._env = env
        self._inherit = inherit
        self._max_output_bytes = max_output_bytes

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands of a call.

        Raises:
            ExecServerError: one could not be run, or its outcome is unknown. The SDK tells the model.
        """
        action = request.data.action
        result = ShellResult(output=[], max_output_length=action.max_output_length)
        for command in action.commands:
            output = await self._run(command, action.timeout_ms)
            result.output.append(output)
            if output.status == "timeout":
                break
        return result

    async def _run(self, command: str, timeout_ms: int | None) -> ShellCommandOutput:
        done = await self._executor.run(
            ["sh", "-c", command],
            cwd=self._cwd,
            env=self._env,
            inherit=self._inherit,
            timeout=self._timeout if timeout_ms is None else max(timeout_ms, 1) / 1000,
            sandbox=self._sandbox,
            max_output_bytes=self._max_output_bytes,
        )
        outcome = ShellCallOutcome("timeout") if done.timed_out else ShellCallOutcome("exit", done.exit_code)
        stderr = done.stderr_text
        if left_out := done.stdout_truncated + done.stderr_truncated:
            stderr += f"\n[{left_out} bytes were left out of the middle of the output]\n"
        return ShellCommandOutput(done.text, stderr, outcome, command)


class ExecServerEditor:
    """Applies the diffs of an `ApplyPatchTool`: `ApplyPatchTool(editor=ExecServerEditor(executor))`.

    Each operation is made whole or not at all, once, and only if the file did not change meanwhile. Files are
    UTF-8. `ApplyPatchTool` reports each error to the model.

    Args:
        executor: has the files.
        cwd: where relative paths begin, and the workspace of the sandbox; the daemon's by default.
        sandbox: what may be written; None for everything.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        cwd: AnyPath | None = None,
        sandbox: SandboxPolicy | None = WorkspaceWrite(),  # noqa: B008 - a value
    ) -> None:
        self._executor = executor
        self._cwd = posixpath.join(executor.cwd, cwd or "")
        self._context = arguments.sandbox(sandbox, self._cwd)
        self._files = executor.files(self._context)

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Create a file with the lines of a diff.

        Raises:
            ValueError: the diff has other lines than `+`, or the file exists.
            PatchError, ExecServerError: the file could not be written.
        """
        path = self._path(operation.path)
        if await self._read(path) is not None:
            raise ValueError(f"{operation.path} exists already: use update_file, or delete it first")
        after = apply_diff("", operation.diff or "", mode="create").encode()
        return await self._apply(Edit("add", path, operation.path, None, after))

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Apply a diff to a file, and move it to `move_to` if the operation has it.

        Raises:
            ValueError: the diff does not fit, or there is no file.
            PatchError, ExecServerError: the file could not be written.
        """
        path = self._path(operation.path)
        before = await self._existing(path, operation)
        after = apply_diff(before.decode(), operation.diff or "").encode()
        if operation.move_to is None:
            return await self._apply(Edit("update", path, operation.path, before, after))
        target = self._path(operation.move_to)
        replaced = await self._read(target)
        return await self._apply(Edit("move", path, operation.move_to, before, after, target, replaced))

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Remove a file.

        Raises:
            ValueError: there is no file.
            PatchError, ExecServerError: it could not be removed.
        """
        path = self._path(operation.path)
        before = await self._existing(path, operation)
        return await self._apply(Edit("delete", path, operation.path, before, None))

    async def _apply(self, edit: Edit) -> ApplyPatchResult:
        done = await apply(Plan((edit,), self._cwd), self._executor, sandbox=self._context)
        return ApplyPatchResult("completed", done.text)

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._cwd, path))

    async def _existing(self, path: str, operation: ApplyPatchOperation) -> bytes:
        content = await self._read(path)
        if content is None:
            raise ValueError(f"{operation.path} does not exist")
        return content

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self._files.read_bytes(path)
        except NotFound:
            return None
