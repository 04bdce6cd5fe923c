"""The workspace as a tar stream: made and unpacked by `tar` at the executor, checked on this machine."""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from agents.sandbox.errors import WorkspaceArchiveReadError, WorkspaceArchiveWriteError
from agents.sandbox.util.tar_utils import (
    UnsafeTarMemberError,
    safe_tar_member_rel_path,
    strip_tar_member_prefix,
    validate_tarfile,
)

from execclient.arguments import new_id
from execclient.client import Executor
from execclient.errors import ExecServerError, StdinUnavailable
from execclient.integrations.openai_agents.access import Access
from execclient.results import RunResult

_TOP = "workspace"
_BLOCK_BYTES = 1 << 20


async def pack(executor: Executor, access: Access, temporary: str, skipped: Iterable[Path]) -> io.IOBase:
    """The workspace as a tar file without a name on this machine.

    Args:
        executor: with the workspace.
        access: to it.
        temporary: a folder at the executor where the file lies until it is copied.
        skipped: paths that are left out, relative to the workspace.

    Raises:
        WorkspaceArchiveReadError: a file cannot be read or archived, or there is no GNU tar.
    """
    path, sandbox = posixpath.join(temporary, f"execserver-{new_id()}.tar"), access.only(temporary)
    excluded = [f"--exclude=./{each.as_posix()}" for each in sorted(skipped)]
    options = ["--hard-dereference", "--anchored", "--no-wildcards", *excluded]
    argv = ["tar", "-C", access.root, *options, f"--transform=s,^\\.,{_TOP},SH", "-cf", path, "."]
    local = tempfile.TemporaryFile()  # noqa: SIM115 - is the result, or closed below
    try:
        result = await executor.run(["sh", "-c", 'umask 077; exec "$@"', "sh", *argv], sandbox=sandbox)
        if result.exit_code not in (0, 1):  # 1: a file changed while it was read
            raise _unreadable(access.root, result.stderr_text)
        await executor.files(sandbox).download(path, local)
        local.seek(0)
        return await asyncio.to_thread(
            strip_tar_member_prefix, local, prefix=_TOP, relativize_symlinks_under=access.root
        )
    except (ExecServerError, UnsafeTarMemberError, tarfile.TarError, OSError) as error:
        raise _unreadable(access.root, str(error), error) from error
    finally:
        local.close()
        with suppress(ExecServerError):
            await executor.run(["rm", "-f", "--", path], sandbox=sandbox)


async def received(data: io.IOBase, root: str) -> IO[bytes]:
    """A copy of a tar stream, after the check that none of its members leaves the workspace.

    Raises:
        WorkspaceArchiveWriteError: one does, or it is no tar file.
    """
    local = tempfile.TemporaryFile()  # noqa: SIM115 - is the result, or closed below
    try:
        await asyncio.to_thread(_copy_checked, data, local)
    except BaseException as error:
        local.close()
        if isinstance(error, UnsafeTarMemberError):
            reason = {"reason": error.reason, "member": error.member}
            raise WorkspaceArchiveWriteError(path=Path(root), context=reason, cause=error) from error
        if isinstance(error, tarfile.TarError | OSError | TypeError):
            raise _unwritable(root, str(error), error) from error
        raise
    return local


async def unpack(executor: Executor, access: Access, archive: IO[bytes]) -> None:
    """Unpack a checked archive over the workspace.

    Raises:
        WorkspaceArchiveWriteError: it would pass through a link of the workspace, or cannot be unpacked.
    """
    root = access.root
    try:
        links = await executor.run(
            ["find", root, "-type", "l", "-printf", "%P\\0"], sandbox=access.only(root), check=True
        )
        through = await asyncio.to_thread(_through_link, archive, set(os.fsdecode(links.stdout).split("\0")))
        if through is not None:
            reason = {"reason": f"symlink in parent path: {through[1]}", "member": through[0]}
            raise WorkspaceArchiveWriteError(path=Path(root), context=reason)
        result = await _extracted(executor, access, archive)
    except ExecServerError as error:
        raise _unwritable(root, str(error), error) from error
    if result.exit_code:
        raise _unwritable(root, result.stderr_text)


async def _extracted(executor: Executor, access: Access, archive: IO[bytes]) -> RunResult:
    # Without -p: no set-id bits, and the owner of every file is the user of the daemon.
    argv = ["tar", "-C", access.root, "--no-same-owner", "--no-same-permissions", "-xf", "-"]
    sandbox = access.only(posixpath.dirname(access.root))
    script = ["sh", "-c", 'umask 022; exec "$@"', "sh", *argv]
    async with await executor.start(script, stdin=True, sandbox=sandbox, cwd=access.root) as process:
        try:
            while block := await asyncio.to_thread(archive.read, _BLOCK_BYTES):
                await process.write(block)
        except StdinUnavailable:
            pass  # it has failed, and says why
        _, stderr = await process.communicate()
        code = await process.wait()
    return RunResult(code, b"", stderr, stderr, 0.0, timed_out=False)


def _copy_checked(data: io.IOBase, local: IO[bytes]) -> None:
    shutil.copyfileobj(data, local)
    local.seek(0)
    with tarfile.open(fileobj=local, mode="r:*") as tar:
        validate_tarfile(tar, allow_external_symlink_targets=False)
    local.seek(0)


def _through_link(archive: IO[bytes], links: set[str]) -> tuple[str, str] | None:
    """The first member below a link of the workspace that the archive does not replace by a folder."""
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        for member in tar:
            path = safe_tar_member_rel_path(member, allow_symlinks=True)
            if path is None:
                continue
            if member.isdir():
                links.discard(path.as_posix())
            for parent in PurePosixPath(path).parents:
                if parent.as_posix() in links:
                    return member.name, parent.as_posix()
    archive.seek(0)
    return None


def _unreadable(root: str, reason: str, cause: Exception | None = None) -> WorkspaceArchiveReadError:
    return WorkspaceArchiveReadError(path=Path(root), context={"reason": reason.strip()}, cause=cause)


def _unwritable(root: str, reason: str, cause: Exception | None = None) -> WorkspaceArchiveWriteError:
    reason = reason.strip()
    message = f"cannot unpack an archive into {root}: {reason}"
    return WorkspaceArchiveWriteError(
        path=Path(root), context={"reason": reason}, cause=cause, message=message
    )
