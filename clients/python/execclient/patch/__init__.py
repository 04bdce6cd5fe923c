"""Patches as models write them (`apply_patch`): parsed, matched with the files, and applied by the daemon."""

from __future__ import annotations

from execclient.patch.apply import Applied, AppliedFile, Beyond, apply, plan_at
from execclient.patch.diff import TurnDiff
from execclient.patch.errors import (
    CannotRead,
    EmptyPatch,
    PatchConflict,
    PatchError,
    PatchFileError,
    PatchMismatch,
    PatchSyntaxError,
    PatchTooComplex,
)
from execclient.patch.intercept import Intercepted, PatchWithoutCall, UnknownDirectory, intercept
from execclient.patch.model import Candidate, Difference, Edit, Repair
from execclient.patch.parse import AddFile, Chunk, DeleteFile, Patch, UpdateFile, parse_patch
from execclient.patch.plan import Plan, plan, touched_paths

__all__ = [
    "AddFile",
    "Applied",
    "AppliedFile",
    "Beyond",
    "Candidate",
    "CannotRead",
    "Chunk",
    "DeleteFile",
    "Difference",
    "Edit",
    "EmptyPatch",
    "Intercepted",
    "Patch",
    "PatchConflict",
    "PatchError",
    "PatchFileError",
    "PatchMismatch",
    "PatchSyntaxError",
    "PatchTooComplex",
    "PatchWithoutCall",
    "Plan",
    "Repair",
    "TurnDiff",
    "UnknownDirectory",
    "UpdateFile",
    "apply",
    "intercept",
    "parse_patch",
    "plan",
    "plan_at",
    "touched_paths",
]
