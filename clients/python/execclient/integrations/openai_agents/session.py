"""A session of the SDK: commands, files and the workspace, in a session at the daemon."""

from __future__ import annotations

import io
import logging
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path, PurePath, PurePosixPath

from agents.sandbox import Manifest
from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.materialization import MaterializationResult
from agents.sandbox.session import BaseSandboxSession
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.runtime_helpers import RuntimeHelperScript
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.types import ExecResult, User
from agents.sandbox.workspace_paths import sandbox_path_str

from execclient.client import Executor
from execclient.errors import (
    CallFailed,
    ExecServerError,
    NotFound,
    StartDenied,
    StartMissing,
)
from execclient.file_session import repeated
from execclient.filesystem import FileSystem
from execclient.integrations.openai_agents.access import Access, Context
from execclient.integrations.openai_agents.archive import pack, received, unpack
from execclient.integrations.openai_agents.links import Link, Links
from execclient.integrations.openai_agents.state import ExecServerSandboxSessionState
from execclient.integrations.openai_agents.terminals import Terminals, failed, name_of
from execprotocol.path_uri import parse_path_uri

log = logging.getLogger(__name__)

_AS_HOST: ContextVar[bool] = ContextVar("as_host", default=False)
"""Whether the host makes or restores the workspace, and no model or program acts."""

_REPEATED_BYTES = 1 << 20
"""Content up to this size is written by one request, which is repeated; more is the input of a command."""

_EXISTS = 17
_CREATE = f'if [ -e "$1" ] || [ -L "$1" ]; then exit {_EXISTS}; fi; set -C; cat > "$1"'
"""Creates a file with its standard input as the content, and never follows or replaces one."""

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""The exit codes of a shell whose command cannot be started."""


class ExecServerSandboxSession(BaseSandboxSession):
    """Commands, files and a workspace at a daemon, confined by the policy of the client that made it."""

    state: ExecServerSandboxSessionState

    def __init__(self, *, state: ExecServerSandboxSessionState, links: Links) -> None:
        self.state = state
        self._links = links
        self._access = Access(links.settings.sandbox, state)
        self._link: Link | None = None
        self._live = False
        self._preserved = False
        """Whether `start` may find the workspace of an earlier start."""
        self._helpers: dict[str, RuntimeHelperScript] = {}

    # -- life

    async def attach(self) -> None:
        """Connect to the session at the daemon; to a new one if it has ended."""
        self._preserved = True
        await self._connected()

    async def _connected(self) -> Link:
        if self._link is None:
            with _starting(self._access.root):
                self._link = await self._links.open(self.state)
        return self._link

    async def _executor(self) -> Executor:
        return (await self._connected()).executor

    async def _terminals(self) -> Terminals:
        return (await self._connected()).terminals

    async def place(self, name: str) -> None:
        """Choose a new folder for the workspace, to which no other session's sandbox may write.

        Raises a `WorkspaceStartError` if the daemon is out of reach, or its user has no home folder.
        """
        executor = await self._executor()
        if executor.home is None:
            await self._shutdown_backend()
            reason = "the daemon's user has no home folder for a workspace: pass Manifest(root=…)"
            raise WorkspaceStartError(path=Path(self._access.root), message=reason)
        root = posixpath.join(executor.home, ".cache", "execserver", "openai-agents", name, "workspace")
        self.state.manifest = self.state.manifest.model_copy(update={"root": root})
        self.state.workspace_root_owned = True

    async def remove(self) -> None:
        """End the session at the daemon, and remove the workspace if it was made for the session."""
        executor = await self._executor()
        try:
            await executor.kill_trees({info.process_id for info in await executor.processes()})
            unwanted = [posixpath.dirname(self._snapshot_fingerprint_cache_path().as_posix())]
            if self.state.workspace_root_owned:
                unwanted.append(posixpath.dirname(self._access.root))
            for path in unwanted:
                sandbox = self._access.only(posixpath.dirname(path))
                removed = await executor.run(["rm", "-rf", "--", path], sandbox=sandbox)
                if removed.exit_code:
                    log.warning("cannot remove %s: %s", path, removed.stderr_text.strip())
        finally:
            await self._shutdown_backend()

    async def _ensure_backend_started(self) -> None:
        preserved = self._preserved and await (await self._files()).is_dir(self._access.root)
        self._set_start_state_preserved(preserved)
        self._live = preserved

    async def _prepare_backend_workspace(self) -> None:
        root, executor = self._access.root, await self._executor()
        with _starting(self._access.root):
            if await executor.fs.is_dir(root):
                return
            above = posixpath.dirname(root)
            while not await executor.fs.is_dir(above):
                above = posixpath.dirname(above)
            made = await executor.run(
                ["mkdir", "-p", "-m", "700", "--", root], sandbox=self._access.only(above)
            )
            if made.exit_code:
                raise WorkspaceStartError(path=Path(root), message=made.stderr_text.strip())

    async def _start_workspace(self) -> None:
        with _as_host():
            await super()._start_workspace()

    async def _after_start(self) -> None:
        self._live = self._preserved = True

    async def _after_start_failed(self) -> None:
        self._live = False

    async def _shutdown_backend(self) -> None:
        self._live = False
        if self._link is not None:
            link, self._link = self._link, None
            await self._links.close(link)

    async def running(self) -> bool:
        """Whether the session has started, and the daemon answers."""
        if not self._live or self._link is None:
            return False
        try:
            await self._link.executor.processes()
        except ExecServerError:
            return False
        return True

    # -- commands

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        # No login shell, as in UnixLocalSandboxSession: its profile would replace the PATH of the daemon.
        prefix = ["sh", "-c"] if shell is True else shell
        argv = super()._prepare_exec_command(*command, shell=prefix, user=user)
        helper = self._helpers.get(argv[0])
        return argv if helper is None else ["sh", "-c", helper.content, *argv]

    async def _ensure_runtime_helper_installed(self, helper: RuntimeHelperScript) -> PurePath:
        # Run from memory: below /tmp, commands of another session could replace the script.
        self._helpers[str(helper.install_path)] = helper
        return helper.install_path

    async def _exec_internal(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's
    ) -> ExecResult:
        argv = [str(part) for part in command]
        try:
            result = await (await self._executor()).run(
                argv,
                cwd=self._access.root,
                env=await self._variables(),
                inherit=self._links.settings.inherit,
                timeout=_limit(timeout),
                sandbox=self._sandbox,
            )
        except (StartMissing, StartDenied) as error:
            code, text = _unstartable(error, self._access.root)
            return ExecResult(stdout=b"", stderr=text, exit_code=code)
        except ExecServerError as error:
            raise failed(argv, error) from error
        if result.timed_out:
            output = {"stdout": result.text, "stderr": result.stderr_text}
            raise ExecTimeoutError(command=argv, timeout_s=timeout, context=output)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    def supports_pty(self) -> bool:
        """Commands may run beside the calls."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - of the command
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command, and return its first output after `yield_time_s` (0.25 to 30; 10 by default).

        `timeout` limits the whole command, in seconds. Cancelling kills it.
        """
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        terminals = await self._terminals()
        number = terminals.new_number()
        try:
            process = await (await self._executor()).start(
                argv,
                id=name_of(number),
                if_exists="attach",
                cwd=self._access.root,
                env=await self._variables(),
                inherit=self._links.settings.inherit,
                timeout=_limit(timeout),
                tty=tty,
                sandbox=self._sandbox,
                buffer_bytes=0,
            )
            await terminals.add(number, process)
            return await terminals.update(
                number,
                yield_time_ms=clamp_pty_yield_time_ms(_milliseconds(yield_time_s, 10_000)),
                max_output_tokens=max_output_tokens,
            )
        except (StartMissing, StartDenied) as error:
            code, text = _unstartable(error, self._access.root)
            return PtyExecUpdate(process_id=None, output=text, exit_code=code, original_token_count=None)
        except BaseException as error:
            await terminals.end(number)
            if isinstance(error, ExecServerError):
                raise failed(argv, error) from error
            raise

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Type into a command, or only wait for its output; also one that an earlier process started."""
        terminals = await self._terminals()
        if chars:
            await terminals.write(session_id, chars)
        asked = _milliseconds(yield_time_s, 250)
        waiting = resolve_pty_write_yield_time_ms(yield_time_ms=asked, input_empty=not chars)
        return await terminals.update(session_id, yield_time_ms=waiting, max_output_tokens=max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Kill all commands that `pty_exec_start` has started, with their descendants."""
        if self._link is not None:
            await self._link.terminals.end()

    # -- files

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """The content of a file of the workspace; with `user`, if that user may read it."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        with _reading(path):
            target = await self._validate_path_access(path)
            return io.BytesIO(await (await self._files()).read_bytes(target))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        target, files = await self._validate_path_access(path), await self._files()
        with _reading(path):
            if (await files.stat(target)).size <= max_bytes:
                return (await files.read_bytes(target))[:max_bytes]
        head = await self._exec_checked_nonzero("head", "-c", str(max_bytes), "--", target)
        return head.stdout

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file of the workspace, and create missing folders; with `user`, if that user may."""
        content = coerce_write_payload(path=path, data=data).stream.read()
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        target = await self._validate_path_access(path, for_write=True)
        if len(content) > _REPEATED_BYTES:
            await self._make_folder(target.parent, user)
            await self._piped('cat > "$1"', target, content)
            return
        try:
            try:
                await self._write_bytes(target, content)
            except NotFound:
                await self._make_folder(target.parent, user)
                await self._write_bytes(target, content)
        except ExecServerError as error:
            raise WorkspaceArchiveWriteError(
                path=path, context={"reason": str(error)}, cause=error, message=str(error)
            ) from error

    async def _write_bytes(self, path: Path, content: bytes) -> None:
        await repeated(partial((await self._files()).write_bytes, path, content))

    async def _make_folder(self, path: Path, user: str | User | None) -> None:
        try:
            await self.mkdir(path, parents=True, user=user)
        except ExecNonZeroError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error, message=str(error)) from error

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        content = coerce_write_payload(path=path, data=data).stream.read()
        target = await self._validate_path_access(path, for_write=True)
        await self._make_folder(target.parent, user)
        await self._piped(_CREATE, target, content, user=user)

    async def _piped(
        self, script: str, path: Path, content: bytes, *, user: str | User | None = None
    ) -> None:
        """Run a script that writes its standard input to a path: each byte goes once, whatever is lost."""
        argv = self._prepare_exec_command("sh", "-c", script, "sh", path, shell=False, user=user)
        try:
            result = await (await self._executor()).run(argv, input=content, sandbox=self._sandbox)
        except ExecServerError as error:
            raise failed(argv, error) from error
        if result.exit_code == _EXISTS:
            raise FileExistsError(str(path))
        if result.exit_code:
            reason = result.stderr_text.strip()
            raise WorkspaceArchiveWriteError(path=path, context={"reason": reason}, message=reason)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        wanted = self.normalize_path(path, for_write=for_write)
        files = await self._files()
        with suppress(CallFailed):
            root, target = await files.resolve(self._access.root), await files.resolve(wanted)
            if PurePosixPath(target).is_relative_to(root):
                return wanted
        # A command, which also knows the grants of the manifest, and links to what does not exist.
        return await self._validate_remote_path_access(path, for_write=for_write)

    # -- the workspace as a whole

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        supported(self.state.manifest)
        with _as_host():
            return await super()._apply_manifest(
                only_ephemeral=only_ephemeral, provision_accounts=provision_accounts
            )

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar stream, without FIFOs, devices and sockets. Needs GNU tar at the executor.

        It takes the size of the workspace in the temporary folders of both machines.
        """
        executor = await self._executor()
        temporary = parse_path_uri(executor.info.get("tempDir") or "file:///tmp")
        return await pack(executor, self._access, temporary, self._persist_workspace_skip_relpaths())

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar stream over the workspace, after the check that none of it leads out of it."""
        await self._prepare_backend_workspace()
        with await received(data, self._access.root) as archive:
            await unpack(await self._executor(), self._access, archive)

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        with await self.state.snapshot.restore(dependencies=self.dependencies) as data:
            # An archive that is refused leaves the workspace as it is.
            archive = await received(data, self._access.root)
        with archive:
            await self._clear_workspace_root_on_resume()
            await unpack(await self._executor(), self._access, archive)

    async def _remove_workspace_entry_on_resume(self, path: Path) -> None:
        await self._exec_checked_nonzero("rm", "-rf", "--", path)

    # -- inside

    @property
    def _sandbox(self) -> Context:
        return self._access.host() if _AS_HOST.get() else self._access.commands()

    async def _files(self) -> FileSystem:
        return (await self._executor()).files(self._sandbox)

    async def _variables(self) -> dict[str, str]:
        return {"HOME": self._access.root, **await self.state.manifest.environment.resolve()}


def supported(manifest: Manifest) -> None:
    """Check that a manifest has only what this client can do.

    Raises:
        ValueError: it has users, groups, or grants with a `host_path`; or its root is `/`.
    """
    if sandbox_path_str(manifest.root) == "/":
        raise ValueError("manifest.root: '/' would be the workspace, and all could be written: name a folder")
    if manifest.users or manifest.groups:
        raise ValueError(
            "manifest.users and manifest.groups: the daemon does not create accounts; remove them"
        )
    for grant in manifest.extra_path_grants:
        if grant.host_path is not None:
            raise ValueError(
                f"manifest.extra_path_grants: {grant.path!r} has a host_path, but nothing is mounted at the "
                "executor: leave it out, and give the path that the executor has"
            )


@contextmanager
def _as_host() -> Iterator[None]:
    token = _AS_HOST.set(True)
    try:
        yield
    finally:
        _AS_HOST.reset(token)


@contextmanager
def _starting(root: str) -> Iterator[None]:
    try:
        yield
    except ExecServerError as error:
        again = isinstance(error, ConnectionError | TimeoutError)
        raise WorkspaceStartError(
            path=Path(root), message=str(error), cause=error, retryable=again
        ) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise WorkspaceReadNotFoundError(path=path, cause=error) from error
    except ExecServerError as error:
        reason = {"reason": str(error)}
        raise WorkspaceArchiveReadError(path=path, context=reason, cause=error) from error


def _unstartable(error: StartMissing | StartDenied, root: str) -> tuple[int, bytes]:
    """The exit code and the message of a shell for a command that cannot be started."""
    if error.path == root:
        raise WorkspaceRootNotFoundError(path=Path(root), cause=error) from error
    return _NOT_FOUND if isinstance(error, StartMissing) else _NOT_EXECUTABLE, f"{error}\n".encode()


def _limit(seconds: float | None) -> float | None:
    """A time limit of the SDK, which may be 0, as one of the client library."""
    return None if seconds is None else max(seconds, 0.001)


def _milliseconds(seconds: float | None, default: int) -> int:
    return default if seconds is None else int(seconds * 1000)
