"""Errors of patches, each with a stable `code` and the exact texts of the two entry points.

    PatchError                   patch_error            any error of a patch
    ├── PatchSyntaxError         patch_syntax           the text is no patch
    ├── EmptyPatch               patch_empty            the patch touches no file
    ├── PatchMismatch            patch_mismatch         its lines are not in the file
    ├── PatchFileError           patch_file             a file cannot be read, written or removed
    │   └── PatchConflict        patch_conflict         a file changed between planning and applying
    └── PatchTooComplex          patch_too_complex      matching it would take too long

The texts are part of the contract with models (`applet_text` for the stand-alone command, on stderr with exit
code 1; `tool_text` for a tool call). They are exact and never extended: attributes hold everything else.
"""

from __future__ import annotations

from typing import ClassVar

from execclient.errors import ExecServerError, os_error_number
from execclient.patch.model import Edit, Repair

VERIFICATION_FAILED = "apply_patch verification failed: "
"""The beginning of the answer to a tool call that asked for no approval and changed nothing."""


class PatchError(ExecServerError):
    """A patch was not applied; the message gives the reason.

    Attributes:
        edits: the edits before the one that failed. If the error comes from planning, none of them was made;
            if it comes from applying, all of them were.
    """

    code: ClassVar[str] = "patch_error"
    edits: tuple[Edit, ...] = ()

    @property
    def applet_text(self) -> str:
        """The text of the stand-alone command, without the line end."""
        return str(self)

    @property
    def tool_text(self) -> str:
        """The answer to a tool call."""
        return VERIFICATION_FAILED + str(self)


class PatchSyntaxError(PatchError):
    """The text is no patch.

    Attributes:
        reason: the error, without the line.
        line: the line, counted from 1 at `*** Begin Patch`; None for an error of the patch as a whole.
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
        """The text of the stand-alone command, which differs from the tool's."""
        if self.line is None:
            return f"Invalid patch: {self.reason}"
        return f"Invalid patch hunk on line {self.line}: {self.reason}"


class EmptyPatch(PatchError):
    """The patch is well formed and touches no file."""

    code = "patch_empty"

    def __init__(self) -> None:
        super().__init__("No files were modified.")

    @property
    def tool_text(self) -> str:
        """The answer to a tool call."""
        return "patch rejected: empty patch"


class PatchMismatch(PatchError):
    """The old lines of a chunk, or its context line, are not in the file.

    Attributes:
        repair: the chunk, where the search began, and the nearest places.
    """

    code = "patch_mismatch"

    def __init__(self, message: str, repair: Repair) -> None:
        super().__init__(message)
        self.repair = repair


class PatchFileError(PatchError):
    """A file that the patch touches cannot be read, written or removed.

    Attributes:
        path: the file, absolute.
        reason: the daemon's message, if this error's message does not include it.
    """

    code = "patch_file"

    def __init__(self, message: str, path: str, reason: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason
        self.about(errno=os_error_number(reason or message))


class PatchConflict(PatchFileError):
    """A file changed after the patch was planned; plan it again."""

    code = "patch_conflict"


class PatchTooComplex(PatchError):
    """Matching the patch would take too long: split it, or give its chunks more context."""

    code = "patch_too_complex"


class CannotRead(Exception):
    """Raised by a `read` function for a path that exists and cannot be read as a file. `plan` handles it.

    Attributes:
        reason: the message of the operating system or the daemon.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
