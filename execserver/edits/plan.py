"""`fs/applyEdits`: from edits, and what was seen of their paths, to the files and steps that they take. Pure.

Whatever is wrong with any of the edits is found here, before anything is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from execprotocol.errors import InvalidParams, InvalidRequest, NotFound, RpcError
from execprotocol.path_text import printable_path
from execserver.filesystem.edit_model import Look, Staged, Staging, Step, Watched
from execserver.filesystem.edit_operations import MARK

ABSENT = "absent"
"""What is expected of a path at which there is to be nothing."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a request."""

    path: str
    text: str | memoryview | None
    """The base64 of what is to be written; None to remove the path."""

    expected: str | None = None
    """A SHA-256, `ABSENT`, or None for whatever there is."""

    create_parents: bool = False
    mode_from: str | None = None

    @property
    def writes(self) -> bool:
        """Whether it writes, and does not remove."""
        return self.text is not None


@dataclass(slots=True)
class Plan:
    """What carrying out some edits takes."""

    stagings: list[tuple[int, Staging]] = field(default_factory=list)
    """The new files, each with the place of its edit."""

    removals: list[Step] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    """What is to be removed: no staging watches it."""

    files: list[str] = field(default_factory=list)
    """Names of ours that may be there, and must not be in the end."""

    folders: list[str] = field(default_factory=list)
    """The same for folders, innermost first."""

    touched: list[str] = field(default_factory=list)
    """Folders of the user's in which names change."""

    def steps(self, staged: Sequence[Staged]) -> list[Step]:
        """The steps, when all new files are there.

        Args:
            staged: for each of the stagings, in their order.
        """
        found: dict[str, Step] = {}
        for (_, staging), made in zip(self.stagings, staged, strict=True):
            target, name = staging.before.target, staging.staged
            if staging.folders:
                # The outermost folder takes all that is in it along.
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

    def still(self, staged: Sequence[Staged]) -> list[Watched]:
        """What has to be true of all targets right before the steps."""
        files = [
            staging.before._replace(identity=made.old)
            for (_, staging), made in zip(self.stagings, staged, strict=True)
        ]
        return [*files, *self.watched]


def make_plan(edits: Sequence[Edit], looks: Sequence[Look], word: str) -> Plan:
    """Find the files and steps that edits take.

    Args:
        edits: all of them.
        looks: what was seen at each of their paths.
        word: what no other names of ours have in them.

    Raises:
        InvalidParams: two edits are of one place.
        InvalidRequest: something is not as an edit expects it.
        NotFound: there is nothing to remove, or no folder to write to.
    """
    _refuse_doubles(edits, looks)
    for index, (edit, look) in enumerate(zip(edits, looks, strict=True)):
        _check(index, edit, look)
    _check_folders(edits, looks)
    return _Maker(word).plan(edits, looks)


def about(index: int, path: str, error: RpcError, member: str = "path") -> RpcError:
    """An error that says which of the edits it is about."""
    message = f"edits[{index}] ({printable_path(path)}): {error.message}"
    return type(error)(message, name=error.name, field=f"edits.{index}.{member}")


def _refuse_doubles(edits: Sequence[Edit], looks: Sequence[Look]) -> None:
    places: dict[object, int] = {}
    for index, (edit, look) in enumerate(zip(edits, looks, strict=True)):
        for place in _places(edit, look):
            other = places.setdefault(place, index)
            if other != index:
                raise _conflict(edits, other, index, "are of one place: join them")
    for index, look in enumerate(looks):
        for folder in _above(look.names[-1]) if look.missing else ():
            if folder in places:
                raise _conflict(
                    edits, places[folder], index, "exclude each other: one is in the way of a folder"
                )


def _places(edit: Edit, look: Look) -> Iterator[object]:
    """What nobody else may be about. To take away two names of one file is none of that."""
    if edit.writes:
        yield from look.names
        if look.identity is not None:
            yield look.identity
    else:
        yield look.names[-1]


def _above(name: str) -> Iterator[str]:
    while (cut := name.rfind("/", name.index("/") + 1)) >= 0:
        name = name[:cut]
        yield name


def _conflict(edits: Sequence[Edit], one: int, other: int, why: str) -> InvalidParams:
    first, second = (printable_path(edits[index].path) for index in (one, other))
    text = f"edits[{one}] ({first}) and edits[{other}] ({second}) {why}"
    return InvalidParams(text, field=f"edits.{other}.path")


def _check(index: int, edit: Edit, look: Look) -> None:
    found = ABSENT if look.identity is None else look.sha256
    if edit.expected is not None and edit.expected != found:
        wanted = "nothing there" if edit.expected == ABSENT else f"the SHA-256 {edit.expected}"
        said = (
            "nothing is there" if found == ABSENT
            else "what is there is no regular file" if found is None
            else f"what is there has the SHA-256 {found}"
        )  # fmt: skip
        raise about(
            index,
            edit.path,
            InvalidRequest(f"expected {wanted}, but {said}; nothing is changed", name="edit_conflict"),
            "expected",
        )
    if not edit.writes and look.identity is None:
        raise about(index, edit.path, NotFound("No such file or directory (os error 2)"))


def _check_folders(edits: Sequence[Edit], looks: Sequence[Look]) -> None:
    """A missing folder is made by the edit itself or by one before it."""
    made: set[str] = set()
    for index, (edit, look) in enumerate(zip(edits, looks, strict=True)):
        if not look.missing:
            continue
        folder = os.path.dirname(look.target)
        if edit.create_parents:
            for _ in range(look.missing):
                made.add(folder)
                folder = os.path.dirname(folder)
        elif folder not in made:
            raise about(index, edit.path, NotFound("No such file or directory (os error 2)"))


class _Maker:
    """Gives names to what has to be made."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._count = 0
        self._roots: dict[str, str] = {}
        """Of the outermost missing folder, what it is called until it gets its name."""
        self._plan = Plan()
        self._folders: dict[str, None] = {}
        self._touched: dict[str, None] = {}

    def plan(self, edits: Sequence[Edit], looks: Sequence[Look]) -> Plan:
        for index, (edit, look) in enumerate(zip(edits, looks, strict=True)):
            if edit.writes:
                self._write(index, look)
            else:
                self._remove(look)
        # What lies in a folder comes after it; so the other way round it comes before it.
        self._plan.folders = list(reversed(self._folders))
        self._plan.touched = list(self._touched)
        return self._plan

    def _write(self, index: int, look: Look) -> None:
        folder, name = os.path.split(look.target)
        before = Watched(look.target, look.identity, look.size, look.changed)
        folders: tuple[str, ...] = ()
        if look.missing:
            folders = self._missing_folders(folder, look.missing)
            staged = os.path.join(folders[-1], name)
        else:
            staged = self._name(folder, "new")
            self._touched[folder] = None
        backup = "" if look.identity is None else self._name(folder, "old")
        self._plan.stagings.append((index, Staging(before, staged, backup, folders, look.mode)))
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

    def _remove(self, look: Look) -> None:
        folder = os.path.dirname(look.target)
        backup = self._name(folder, "old")
        self._touched[folder] = None
        self._plan.watched.append(Watched(look.target, look.identity, look.size, look.changed))
        self._plan.removals.append(Step("remove", look.target, "", backup, None, look.identity, look.changed))
        self._plan.files.append(backup)

    def _name(self, folder: str, kind: str) -> str:
        self._count += 1
        return os.path.join(folder, f"{MARK}{self._word}-{self._count}.{kind}")
