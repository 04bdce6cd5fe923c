"""Whether the sandbox made a command fail: two rules. Pure.

`denied` is the reference's rule, which clients of the reference rely on: words anywhere in the output.
It is also true for a path that contains "sandbox". `evidence` is stricter: an errno text next to a path that
the policy denies, or next to a network operation while the network is off. Words alone are no evidence, and
no exit code is, except that of SIGSYS.

Both take time linear in the output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from execserver.sandbox import glob_patterns
from execserver.sandbox.errno_texts import (
    BUSY,
    DENIED,
    EXISTS,
    IS_DIRECTORY,
    NO_NETWORK,
    NOT_EMPTY,
    NOT_PERMITTED,
    READ_ONLY,
    ErrnoText,
    find_errno_texts,
    is_about_network,
    names_of,
)
from execserver.sandbox.policy import PROTECTED_NAMES, Access, Policy, Rule, is_below

EXIT_SIGSYS = 128 + 31
"""The exit code of a command that a seccomp filter killed (SIGSYS)."""

_REFERENCE_WORDS = (
    b"operation not permitted",
    b"permission denied",
    b"read-only file system",
    b"seccomp",
    b"sandbox",
    b"landlock",
    b"failed to write file",
)

_KELVIN = "\N{KELVIN SIGN}".encode()
"""The only character outside ASCII whose lower case is a letter of these words."""

MOST_EVIDENCE = 5
MOST_TEXT = 200
"""Characters of a line in the result."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sign that the sandbox denied something."""

    kind: Literal["signal", "file", "network"]
    text: str
    """The line, or for a signal a description; at most 200 characters."""

    path: str | None = None
    """Absolute; for files."""

    reason: Literal["protectedName", "readOnly", "noAccess"] | None = None
    """Why the policy denies the path; for files."""

    protected: str | None = None
    """The path of the protected name at, above or in `path`, if that is the reason."""

    def as_json(self) -> dict[str, str]:
        """The element of the extension member `denial`, without the members that have no value."""
        about: dict[str, str] = {"kind": self.kind, "text": self.text}
        if self.path is not None:
            about["path"] = _wire_path(self.path)
        if self.reason is not None:
            about["reason"] = self.reason
        if self.protected is not None:
            about["protectedPath"] = _wire_path(self.protected)
        return about


@dataclass(frozen=True, slots=True)
class Denial:
    """The evidence that the sandbox made a command fail; empty if there is none."""

    evidence: tuple[Evidence, ...] = ()
    """At most five, each different."""

    @property
    def likely(self) -> bool:
        """Whether the output suggests that the command failed because of the sandbox."""
        return bool(self.evidence)

    def as_json(self) -> dict[str, object]:
        """The extension member `denial`: `{"likely": …, "evidence": [{"kind", "text", …}]}`."""
        return {"likely": self.likely, "evidence": [each.as_json() for each in self.evidence]}


def denied(exit_code: int, output: bytes) -> bool:
    """The reference's `sandboxDenied` of a sandboxed command that ended.

    Args:
        exit_code: as on the wire; 0 is never a denial.
        output: what the command wrote, both streams.
    """
    if exit_code == 0:
        return False
    if exit_code == EXIT_SIGSYS:
        return True
    text = output.lower().replace(_KELVIN, b"k")
    return any(words in text for words in _REFERENCE_WORDS)


@dataclass(frozen=True, slots=True)
class StandIns:
    """The empty read-only folders that a command sees in place of missing paths that it must not create."""

    paths: Collection[str] = ()
    """Absolute, as in the policy."""

    fill: Callable[[str], bool] = lambda _: False
    """Whether a folder on the host holds nothing else than such folders."""

    def above(self, path: str) -> str | None:
        """The one at or above a path."""
        return next((each for each in self.paths if is_below(path, each)), None)

    def inside(self, folder: str) -> str | None:
        """One of them that makes a folder appear not to be empty."""
        found = next((each for each in self.paths if os.path.dirname(each) == folder), None)
        return found if found is not None and self.fill(folder) else None


def evidence(
    policy: Policy,
    exit_code: int,
    output: bytes,
    cwd: str,
    *,
    landlock: bool = False,
    stand_ins: StandIns | None = None,
    spellings: Mapping[str, str] | None = None,
) -> Denial:
    """The evidence that the sandbox made a command fail.

    Args:
        policy: the policy of the command.
        exit_code: as on the wire; 0 is never a denial.
        output: what the command wrote, both streams.
        cwd: the command's working directory, absolute: relative names in the output start there.
        landlock: whether Landlock enforced the policy. It refuses a write with EACCES; with mounts a refused
            write is EROFS, and EACCES comes from the file's mode.
        stand_ins: the empty folders that the sandbox shows.
        spellings: for `respelled`.
    """
    if exit_code == 0 or not policy.limits_anything:
        return Denial()
    found: dict[tuple[str, str], Evidence] = {}
    if exit_code == EXIT_SIGSYS:
        found["signal", ""] = Evidence("signal", "killed by SIGSYS: a system call that the sandbox forbids")
    search = _EvidenceSearch(policy, cwd, landlock, stand_ins or StandIns(), spellings or {})
    for start, end, kind in find_errno_texts(output.lower()):
        if len(found) >= MOST_EVIDENCE:
            break
        one = search.evidence_in(ErrnoText.at(output, start, end), kind)
        if one is not None:
            found.setdefault((one.kind, one.path or one.text), one)
    return Denial(tuple(found.values()))


def respelled(path: str, spellings: Mapping[str, str]) -> str:
    """A path as the policy spells it: programs print the real path of their working directory.

    Args:
        path: absolute.
        spellings: by the real path of a folder, its path in the policy.
    """
    for real, spelled in spellings.items():
        if is_below(path, real):
            return spelled + path.removeprefix(real)
    return path


def is_writable(policy: Policy, path: str) -> bool:
    """Whether a policy allows writing to an absolute path, by its rules and the protected names."""
    path = os.path.normpath(path)
    return policy.access(path) is Access.WRITE and _protected_by(policy, path) is None


def _protected_by(policy: Policy, path: str) -> str | None:
    """The protected name at or above a path, unless a deeper rule makes it writable again."""
    if policy.unrestricted:
        return None
    above = [rule for rule in policy.rules if is_below(path, rule.path)]
    for root in above:
        if root.access is not Access.WRITE:
            continue
        for name in PROTECTED_NAMES:
            guarded = os.path.join(root.path, name)
            if is_below(path, guarded) and not any(is_below(rule.path, guarded) for rule in above):
                return guarded
    return None


class _EvidenceSearch:
    """Compares lines of output with a policy."""

    def __init__(
        self, policy: Policy, cwd: str, landlock: bool, stand_ins: StandIns, spellings: Mapping[str, str]
    ) -> None:
        self._policy = policy
        self._cwd = cwd
        self._landlock = landlock
        self._stand_ins = stand_ins
        self._spellings = spellings

    def evidence_in(self, found: ErrnoText, kind: str) -> Evidence | None:
        """The evidence in a line; None if there is none."""
        if found.is_quoted or found.is_from_elsewhere:
            return None
        if kind == IS_DIRECTORY and not found.is_about_writing:
            return None
        network = not self._policy.network
        if kind == NO_NETWORK:
            return Evidence("network", _shown(found.line)) if network else None
        if self._policy.limits_files and (files := list(self._files_in(found, kind))):
            # Where git copies into a protected `.git`, the source, which is just not writable, comes first.
            return next((file for file in files if file.reason != "readOnly"), files[0])
        if network and kind == NOT_PERMITTED and is_about_network(found):
            return Evidence("network", _shown(found.line))
        return None

    def _files_in(self, found: ErrnoText, kind: str) -> Iterator[Evidence]:
        for name in names_of(found):
            # `normpath` keeps two leading slashes, which the kernel treats as one.
            path = "/" + os.path.normpath(os.path.join(self._cwd, name)).lstrip("/")
            path = respelled(path, self._spellings)
            stand_in = self._stand_in(path, kind)
            if stand_in is not None or self._is_closed(path, kind):
                yield self._of_file(_shown(found.line), path, stand_in)

    def _of_file(self, text: str, path: str, stand_in: str | None) -> Evidence:
        protected = _protected_by(self._policy, stand_in or path)
        if protected is not None:
            return Evidence("file", text, path, "protectedName", protected)
        denied = self._policy.access(stand_in or path) is Access.DENY or self._is_denied_by_glob(path)
        return Evidence("file", text, path, "noAccess" if denied else "readOnly")

    def _stand_in(self, path: str, kind: str) -> str | None:
        """The stand-in that explains an error; None for another reason."""
        if kind == NOT_EMPTY:
            return self._stand_ins.inside(path)
        found = self._stand_ins.above(path)
        # Below one there is nothing, so no other reason to deny.
        explains = kind == DENIED or (kind in (EXISTS, IS_DIRECTORY) and found == path)
        return found if explains else None

    def _is_closed(self, path: str, kind: str) -> bool:
        if is_below(path, "/dev/tcp") or is_below(path, "/dev/udp"):
            return False  # a shell's syntax for a connection
        if kind in (EXISTS, IS_DIRECTORY, NOT_EMPTY):
            return False
        if kind == READ_ONLY:
            return not is_writable(self._policy, path)
        if kind == BUSY:
            return self._is_mount_point(path)
        if kind == DENIED and self._landlock and not is_writable(self._policy, path):
            return True
        # Where reading is allowed, the file's mode and owner explain the error.
        return self._policy.access(path) is Access.DENY or self._is_denied_by_glob(path)

    def _is_mount_point(self, path: str) -> bool:
        """Whether a path is read-only in a writable folder: then it is a mount, which cannot be renamed."""
        if is_writable(self._policy, path) or not is_writable(self._policy, os.path.dirname(path)):
            return False
        return _protected_by(self._policy, path) == path or any(
            rule.path == path for rule in self._closing_rules()
        )

    def _closing_rules(self) -> Iterator[Rule]:
        return (rule for rule in self._policy.rules if rule.access is not Access.WRITE)

    def _is_denied_by_glob(self, path: str) -> bool:
        return glob_patterns.matches(self._policy.deny_globs, path)


def _wire_path(path: str) -> str:
    # Names may hold bytes that are not UTF-8, which JSON cannot carry.
    return os.fsencode(path).decode(errors="replace")


def _shown(line: str) -> str:
    """A line for the result: printable, and cut to its end, which names the error."""
    text = "".join(char if char.isprintable() else " " for char in line).strip()
    return text if len(text) <= MOST_TEXT else "…" + text[1 - MOST_TEXT :]
