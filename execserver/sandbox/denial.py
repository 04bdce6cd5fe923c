"""Did the sandbox make a command fail? Two answers, for two readers. Pure.

`denied` is the reference's rule, which clients of the reference act on: words anywhere in the output.
It also fires for a path that contains "sandbox". `evidence` is ours: an errno text that stands beside a
path which the policy keeps closed, or beside a network operation while the network is off. Words alone
are no evidence, and neither is an exit code but that of SIGSYS.

Both take time that is linear in the output.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from execserver.sandbox import glob_patterns
from execserver.sandbox.errno_texts import (
    BUSY,
    DENIED,
    NO_NETWORK,
    NOT_PERMITTED,
    READ_ONLY,
    ErrnoText,
    find_errno_texts,
    is_about_network,
    names_of,
)
from execserver.sandbox.policy import PROTECTED_NAMES, Access, Policy, Rule, is_below

EXIT_SIGSYS = 128 + 31
"""What a command killed by SIGSYS, a seccomp filter's, ends with."""

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
"""The one letter beyond ASCII whose small form is a letter of these words."""

MOST_EVIDENCE = 5
MOST_TEXT = 200
"""Characters of a line that are shown."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that speaks for a denial."""

    kind: Literal["signal", "file", "network"]
    text: str
    """The line, or for a signal what happened; at most 200 characters."""

    path: str | None = None
    """Absolute; for files."""

    def as_json(self) -> dict[str, str]:
        """As it stands in the extension member `denial`; without `path` when there is none."""
        about: dict[str, str] = {"kind": self.kind, "text": self.text}
        if self.path is not None:
            # Names may hold bytes that are no UTF-8, which no JSON text can carry.
            about["path"] = os.fsencode(self.path).decode(errors="replace")
        return about


@dataclass(frozen=True, slots=True)
class Denial:
    """What speaks for it that the sandbox stopped a command; nothing does when `evidence` is empty."""

    evidence: tuple[Evidence, ...] = ()
    """At most five, each different."""

    @property
    def likely(self) -> bool:
        """Whether the command failed because of the sandbox, for all that its output tells."""
        return bool(self.evidence)

    def as_json(self) -> dict[str, object]:
        """The extension member `denial`: `{"likely": …, "evidence": [{"kind", "text", "path"?}]}`."""
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


def evidence(policy: Policy, exit_code: int, output: bytes, cwd: str, *, landlock: bool = False) -> Denial:
    """What speaks for it that the sandbox made a command fail.

    Args:
        policy: what the command was confined to.
        exit_code: as on the wire; 0 is never a denial.
        output: what the command wrote, both streams.
        cwd: the command's working directory, absolute: relative names in the output start there.
        landlock: whether Landlock enforced the policy. It refuses a write with EACCES, where a
            read-only mount says EROFS and EACCES is the file's own mode.
    """
    if exit_code == 0 or not policy.limits_anything:
        return Denial()
    found: dict[tuple[str, str], Evidence] = {}
    if exit_code == EXIT_SIGSYS:
        found["signal", ""] = Evidence("signal", "killed by SIGSYS: a system call that the sandbox forbids")
    judge = _EvidenceSearch(policy, cwd, landlock)
    for start, end, kind in find_errno_texts(output.lower()):
        if len(found) >= MOST_EVIDENCE:
            break
        one = judge.look(ErrnoText.at(output, start, end), kind)
        if one is not None:
            found.setdefault((one.kind, one.path or one.text), one)
    return Denial(tuple(found.values()))


def is_writable(policy: Policy, path: str) -> bool:
    """Whether a policy lets an absolute path be written: its rules, and the protected names of its roots."""
    path = os.path.normpath(path)
    return policy.access(path) is Access.WRITE and _protected_by(policy, path) is None


def _protected_by(policy: Policy, path: str) -> str | None:
    """The protected name at or above a path, unless a deeper rule opens it again."""
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
    """Holds lines of output against a policy."""

    def __init__(self, policy: Policy, cwd: str, landlock: bool) -> None:
        self._policy = policy
        self._cwd = cwd
        self._landlock = landlock

    def look(self, found: ErrnoText, kind: str) -> Evidence | None:
        """What the line proves; None for nothing."""
        if found.is_quoted or found.is_from_elsewhere:
            return None
        network = not self._policy.network
        if kind == NO_NETWORK:
            return Evidence("network", _shown(found.line)) if network else None
        if self._policy.limits_files:
            for name in names_of(found):
                # Two slashes at the beginning survive `normpath`; the kernel reads them as one.
                path = "/" + os.path.normpath(os.path.join(self._cwd, name)).lstrip("/")
                if self._is_closed(path, kind):
                    return Evidence("file", _shown(found.line), path)
        if network and kind == NOT_PERMITTED and is_about_network(found):
            return Evidence("network", _shown(found.line))
        return None

    def _is_closed(self, path: str, kind: str) -> bool:
        if is_below(path, "/dev/tcp") or is_below(path, "/dev/udp"):
            return False  # a shell's words for a connection
        if kind == READ_ONLY:
            return not is_writable(self._policy, path)
        if kind == BUSY:
            return self._is_mount_point(path)
        if kind == DENIED and self._landlock and not is_writable(self._policy, path):
            return True
        # Where reading is allowed, the mode and owner of a file say no without any sandbox.
        return self._policy.access(path) is Access.DENY or self._is_denied_by_glob(path)

    def _is_mount_point(self, path: str) -> bool:
        """Whether it is closed, in a folder that may be written: a mount of ours, that cannot be renamed."""
        if is_writable(self._policy, path) or not is_writable(self._policy, os.path.dirname(path)):
            return False
        return _protected_by(self._policy, path) == path or any(
            rule.path == path for rule in self._closing_rules()
        )

    def _closing_rules(self) -> Iterator[Rule]:
        return (rule for rule in self._policy.rules if rule.access is not Access.WRITE)

    def _is_denied_by_glob(self, path: str) -> bool:
        return glob_patterns.matches(self._policy.deny_globs, path)


def _shown(line: str) -> str:
    """A line as it can be told: printable, and of a long one the end, which says what went wrong."""
    text = "".join(char if char.isprintable() else " " for char in line).strip()
    return text if len(text) <= MOST_TEXT else "…" + text[1 - MOST_TEXT :]
