"""Why a patch was not applied, each with a stable `code` and the exact texts of the two entry points.

    PatchError                   patch_error            whatever is wrong with a patch
    ├── PatchSyntaxError         patch_syntax           the text is no patch
    ├── EmptyPatch               patch_empty            a patch that touches no file
    ├── PatchMismatch            patch_mismatch         its lines are not in the file
    ├── PatchFileError           patch_file             a file cannot be read, written or removed
    │   └── PatchConflict        patch_conflict         a file changed between planning and applying
    └── PatchTooComplex          patch_too_complex      matching it would take too long

The texts are part of the contract with models (`applet_text` for the stand-alone command, on its standard
error with exit code 1; `tool_text` for a tool call), so they are exact and never get additions: what we
know beyond them is in attributes.
"""

from __future__ import annotations

from typing import ClassVar

from execclient.errors import ExecServerError, os_error_number
from execclient.patch.model import Edit, Repair

VERIFICATION_FAILED = "apply_patch verification failed: "
"""What a tool call's answer begins with when nothing was asked for and nothing was changed."""


class PatchError(ExecServerError):
    """A patch was not applied; the message says why.

    Attributes:
        edits: what the patch does before the place that failed. Of a patch that is being planned,
            nothing of it was done; of one that is being applied, all of it was.
    """

    code: ClassVar[str] = "patch_error"
    edits: tuple[Edit, ...] = ()

    @property
    def applet_text(self) -> str:
        """What the stand-alone command says, without the line end."""
        return str(self)

    @property
    def tool_text(self) -> str:
        """What a tool call answers."""
        return VERIFICATION_FAILED + str(self)


class PatchSyntaxError(PatchError):
    """The text is no patch.

    Attributes:
        reason: what is wrong.
        line: where, counted from 1 at `*** Begin Patch`; None when it is about the patch as a whole.
    """

    code = "patch_syntax"

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(
            f"invalid patch: {reason}" if line is None else f"invalid hunk at line {line}, {reason}"
        )
        self.reason = reason
        self.line = line

    @property
    def applet_text(self) -> str:
        """What the stand-alone command says: other words than those of the tool."""
        if self.line is None:
            return f"Invalid patch: {self.reason}"
        return f"Invalid patch hunk on line {self.line}: {self.reason}"


class EmptyPatch(PatchError):
    """The patch is well formed, and touches no file."""

    code = "patch_empty"

    def __init__(self) -> None:
        super().__init__("No files were modified.")

    @property
    def tool_text(self) -> str:
        """What a tool call answers."""
        return "patch rejected: empty patch"


class PatchMismatch(PatchError):
    """The lines that a chunk wants to change, or the line it wants to begin after, are not in the file.

    Attributes:
        repair: which chunk, where it was looked for, and which places come near.
    """

    code = "patch_mismatch"

    def __init__(self, message: str, repair: Repair) -> None:
        super().__init__(message)
        self.repair = repair


class PatchFileError(PatchError):
    """A file that the patch touches cannot be read, written or removed.

    Attributes:
        path: which, absolute.
        reason: what the daemon says, where the message leaves it out.
    """

    code = "patch_file"

    def __init__(self, message: str, path: str, reason: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason
        self.about(errno=os_error_number(reason or message))


class PatchConflict(PatchFileError):
    """A file is no longer as it was when the patch was planned; plan it again."""

    code = "patch_conflict"


class PatchTooComplex(PatchError):
    """Finding the places of the patch would take too long: split it, or give its chunks more context."""

    code = "patch_too_complex"


class CannotRead(Exception):
    """What a `read` raises for what is there and cannot be read as a file. It never leaves the planner.

    Attributes:
        reason: as the operating system or the daemon says it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
