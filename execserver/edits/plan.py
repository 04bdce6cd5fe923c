"""The plan of `fs/applyEdits`: edits and the inspections of their paths give the files and steps. Pure.

All faults of a request are found here, before any file is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from execprotocol.errors import InvalidParams, InvalidRequest, NotFound, RpcError
from execprotocol.path_text import printable_path
from execserver.filesystem.edit_model import Inspection, Staged, Staging, Step, TargetState
from execserver.filesystem.edit_operations import EDIT_PREFIX

ABSENT = "absent"
"""The expectation that there is no file."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a request."""

    path: str
    text: str | memoryview | None
    """The new content in base64; None removes the path."""

    expected: str | None = None
    """The SHA-256 of the old content, `ABSENT`, or None for no expectation."""

    create_parents: bool = False
    mode_from: str | None = None

    @property
    def writes(self) -> bool:
        """Whether the edit writes its path; otherwise it removes it."""
        return self.text is not None


@dataclass(slots=True)
class Plan:
    """The files and steps of a request."""

    stagings: list[tuple[int, Staging]] = field(default_factory=list)
    """The new files, each with the index of its edit."""

    removals: list[Step] = field(default_factory=list)
    watched: list[TargetState] = field(default_factory=list)
    """The states of the files to be removed, which have no staging."""

    files: list[str] = field(default_factory=list)
    """Our temporary files, which must be gone in the end."""

    folders: list[str] = field(default_factory=list)
    """Our temporary folders, innermost first."""

    touched: list[str] = field(default_factory=list)
    """Folders of the user in which names change."""

    def steps(self, staged: Sequence[Staged]) -> list[Step]:
        """The steps.

        Args:
            staged: the new files, in the order of the stagings.
        """
        found: dict[str, Step] = {}
        for (_, staging), made in zip(self.stagings, staged, strict=True):
            target, name = staging.before.target, staging.staged
            if staging.folders:
                # The outermost folder is renamed with all that is in it.
                below = len(staging.folders)
                for _ in range(below):
                    target = os.path.dirname(target)
                name = staging.folders[0]
                found.setdefault(name, Step("make", target, name, "", made.folder, None))
            elif staging.backup:
                found[name] = Step("replace", target, name, staging.backup, made.identity, made.old)
            else:
                found[name] = Step("make", target, name, "", made.identity, None)
        return [*found.values(), *self.removals]

    def expected_states(self, staged: Sequence[Staged]) -> list[TargetState]:
        """The state that each target must have right before the steps."""
        files = [
            staging.before._replace(identity=made.old)
            for (_, staging), made in zip(self.stagings, staged, strict=True)
        ]
        return [*files, *self.watched]


def make_plan(edits: Sequence[Edit], inspections: Sequence[Inspection], word: str) -> Plan:
    """Check edits, and plan their files and steps.

    Args:
        edits: all edits of the request.
        inspections: one for each edit.
        word: a random word for temporary names.

    Raises:
        InvalidParams: two edits have the same target.
        InvalidRequest: a file is not as an edit expects it.
        NotFound: a file to be removed, or a folder to write to, is missing.
    """
    _refuse_doubles(edits, inspections)
    for index, (edit, inspection) in enumerate(zip(edits, inspections, strict=True)):
        _check(index, edit, inspection)
    _check_folders(edits, inspections)
    return _Maker(word).plan(edits, inspections)


def edit_error(index: int, path: str, error: RpcError, member: str = "path") -> RpcError:
    """The same error, naming the edit."""
    message = f"edits[{index}] ({printable_path(path)}): {error.message}"
    return type(error)(message, name=error.name, field=f"edits.{index}.{member}")


def _refuse_doubles(edits: Sequence[Edit], inspections: Sequence[Inspection]) -> None:
    places: dict[object, int] = {}
    for index, (edit, inspection) in enumerate(zip(edits, inspections, strict=True)):
        for place in _places(edit, inspection):
            other = places.setdefault(place, index)
            if other != index:
                raise _conflict(edits, other, index, "are of one place: join them")
    for index, inspection in enumerate(inspections):
        for folder in _above(inspection.names[-1]) if inspection.missing else ():
            if folder in places:
                raise _conflict(
                    edits, places[folder], index, "exclude each other: one is in the way of a folder"
                )


def _places(edit: Edit, inspection: Inspection) -> Iterator[object]:
    """The names and the file that no other edit may have. Two edits may remove two names of one file."""
    if edit.writes:
        yield from inspection.names
        if inspection.identity is not None:
            yield inspection.identity
    else:
        yield inspection.names[-1]


def _above(name: str) -> Iterator[str]:
    while (cut := name.rfind("/", name.index("/") + 1)) >= 0:
        name = name[:cut]
        yield name


def _conflict(edits: Sequence[Edit], one: int, other: int, why: str) -> InvalidParams:
    first, second = (printable_path(edits[index].path) for index in (one, other))
    text = f"edits[{one}] ({first}) and edits[{other}] ({second}) {why}"
    return InvalidParams(text, field=f"edits.{other}.path")


def _check(index: int, edit: Edit, inspection: Inspection) -> None:
    found = ABSENT if inspection.identity is None else inspection.sha256
    if edit.expected is not None and edit.expected != found:
        wanted = "nothing there" if edit.expected == ABSENT else f"the SHA-256 {edit.expected}"
        actual = (
            "nothing is there" if found == ABSENT
            else "what is there is no regular file" if found is None
            else f"what is there has the SHA-256 {found}"
        )  # fmt: skip
        raise edit_error(
            index,
            edit.path,
            InvalidRequest(f"expected {wanted}, but {actual}; nothing is changed", name="edit_conflict"),
            "expected",
        )
    if not edit.writes and inspection.identity is None:
        raise edit_error(index, edit.path, NotFound("No such file or directory (os error 2)"))


def _check_folders(edits: Sequence[Edit], inspections: Sequence[Inspection]) -> None:
    """Check that each missing folder is made by the edit itself or by one before it."""
    made: set[str] = set()
    for index, (edit, inspection) in enumerate(zip(edits, inspections, strict=True)):
        if not inspection.missing:
            continue
        folder = os.path.dirname(inspection.target)
        if edit.create_parents:
            for _ in range(inspection.missing):
                made.add(folder)
                folder = os.path.dirname(folder)
        elif folder not in made:
            raise edit_error(index, edit.path, NotFound("No such file or directory (os error 2)"))


class _Maker:
    """Names the temporary files and folders of a plan."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._count = 0
        self._roots: dict[str, str] = {}
        """Outermost missing folder → its temporary name."""
        self._plan = Plan()
        self._folders: dict[str, None] = {}
        self._touched: dict[str, None] = {}

    def plan(self, edits: Sequence[Edit], inspections: Sequence[Inspection]) -> Plan:
        for index, (edit, inspection) in enumerate(zip(edits, inspections, strict=True)):
            if edit.writes:
                self._write(index, inspection)
            else:
                self._remove(inspection)
        # `_folders` has each folder before those in it.
        self._plan.folders = list(reversed(self._folders))
        self._plan.touched = list(self._touched)
        return self._plan

    def _write(self, index: int, inspection: Inspection) -> None:
        folder, name = os.path.split(inspection.target)
        before = TargetState(inspection.target, inspection.identity, inspection.size, inspection.changed)
        folders: tuple[str, ...] = ()
        if inspection.missing:
            folders = self._missing_folders(folder, inspection.missing)
            staged = os.path.join(folders[-1], name)
        else:
            staged = self._name(folder, "new")
            self._touched[folder] = None
        backup = "" if inspection.identity is None else self._name(folder, "old")
        self._plan.stagings.append((index, Staging(before, staged, backup, folders, inspection.mode)))
        self._plan.files += [staged, backup] if backup else [staged]

    def _missing_folders(self, folder: str, missing: int) -> tuple[str, ...]:
        names: list[str] = []
        for _ in range(missing):
            folder, name = os.path.split(folder)
            names.insert(0, name)
        outermost = os.path.join(folder, names[0])
        if outermost not in self._roots:
            self._roots[outermost] = self._name(folder, "dir")
            self._touched[folder] = None
        found = [self._roots[outermost]]
        for name in names[1:]:
            found.append(os.path.join(found[-1], name))
        for path in found:
            self._folders.setdefault(path)
        return tuple(found)

    def _remove(self, inspection: Inspection) -> None:
        folder = os.path.dirname(inspection.target)
        backup = self._name(folder, "old")
        self._touched[folder] = None
        self._plan.watched.append(
            TargetState(inspection.target, inspection.identity, inspection.size, inspection.changed)
        )
        self._plan.removals.append(
            Step("remove", inspection.target, "", backup, None, inspection.identity, inspection.changed)
        )
        self._plan.files.append(backup)

    def _name(self, folder: str, kind: str) -> str:
        self._count += 1
        return os.path.join(folder, f"{EDIT_PREFIX}{self._word}-{self._count}.{kind}")
