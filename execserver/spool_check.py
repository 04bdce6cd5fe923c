"""Output is to be kept on disk: can it be, below this state folder, and how well?

For `execserver doctor`. Nothing here stops a command: where the disk takes no output it is kept in memory,
which is little, and so whatever is wrong is a warning. Tried as a daemon would use it, with files that have
no name; a spool folder that is missing is not made, since its parent tells the same of the file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from execserver.sandbox.diagnostics.mechanisms import Check
from execserver.spool.spool import Spool, SpoolLimits

_NAME = "spool folder"
_IN_MEMORY = "cannot be used: output is kept in memory, 1 MiB a process"
_ELSEWHERE = "name a folder on another file system with --spool-dir"


def spool_folder_check(state_folder: str | None, max_bytes: int) -> Check:
    """Whether the spool below a state folder is private, takes bytes, has room for all that may come, and
    gets it from pipes without a copy. Blocking; leaves nothing behind.

    Args:
        state_folder: as `open_state_folder` gives it; None: there is none.
        max_bytes: the setting `spool_max_bytes`.
    """
    if state_folder is None:
        return Check(_NAME, "warning", _IN_MEMORY, "there is no state folder", "see state folder")
    path = f"{state_folder}/spool"
    exists = os.path.lexists(path)
    reasons: list[str] = []
    spool = Spool(
        path if exists else state_folder,
        SpoolLimits(disk=max_bytes),
        lambda failing, reason: reasons.append(reason) if failing else None,
    )
    try:
        if spool.folder_problem is not None:
            cause, _, fix = spool.folder_problem.partition("; ")
            fix = fix or "remove it, so that it is made anew, or name another place with --spool-dir"
            return Check(_NAME, "warning", _IN_MEMORY, cause, fix)
        problem = _storing_problem(spool, reasons)
        if problem:
            cause = f"nothing can be written in {path}: {problem}"
            return Check(_NAME, "warning", _IN_MEMORY, cause, f"make room there, or {_ELSEWHERE}")
        found = list(_weaknesses(spool, path if exists else state_folder, max_bytes))
    finally:
        spool.close()
    detail = path if exists else f"{path}, made at the start"
    if not found:
        return Check(_NAME, "ok", detail)
    causes, fixes = zip(*found, strict=True)
    return Check(_NAME, "warning", detail, "; ".join(causes), "; ".join(dict.fromkeys(fixes)))


def _storing_problem(spool: Spool, reasons: list[str]) -> str:
    """Why a byte cannot be stored; empty when it can.

    Args:
        spool: with a folder.
        reasons: where it says why the disk failed.
    """
    try:
        file = spool.new_disk_file(0)
        if file is None:
            return reasons[-1]
        try:
            file.store(b"x")
        finally:
            file.close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _weaknesses(spool: Spool, path: str, max_bytes: int) -> Iterator[tuple[str, str]]:
    """Causes and fixes of what works worse than it could."""
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if free < max_bytes:
        cause = f"{_mib(free)} are free there, and all output may take {_mib(max_bytes)} (--spool-max-bytes)"
        yield cause, f"make room there, lower --spool-max-bytes, or {_ELSEWHERE}"
    if not spool.disk_splices():
        cause = "its file system does not splice: a server that is killed can lose 64 KiB a process"
        yield cause, f"{_ELSEWHERE}: ext4, XFS, Btrfs and tmpfs do"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
