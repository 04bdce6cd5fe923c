"""Globs of searches: which paths below a folder they match. In linear time, whatever the glob.

Globs have `*`, `?`, `[…]`, `{a,b}`, and `**` for any number of folders. A glob without `/` applies to the
names of files at any depth; one with `/`, also at its beginning, applies to paths below the searched folder.
A name that begins with a dot needs a glob with the dot, and `**` enters no folder with such a name.

Braces are those of the package `bracex`; what matches a single name is decided by the package `wcmatch`. The
folders are ours: a regular expression of `wcmatch` for several `**` can take hours for one path. This module
is imported by the first search with a glob, and raises `ImportError` without these packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import bracex
from wcmatch import glob as wcmatch

_MAX_ALTERNATIVES = 1000
"""Of the braces in all globs of a search."""

_HEAD, _TAIL = "^(?s:", "[/]*?)$"
"""What `wcmatch` puts around the expression for a name."""

_FOLDERS = r"(?:[^/.][^/]*+/)"
"""A folder that `**` enters."""

_BELOW = r"[^/.][^/]*+(?:/[^/.][^/]*+)*+"
"""What `**` matches at the end of a glob: a file at any depth."""

_ANY_FOLDERS = r"(?:[^/]*+/)*+"

_ROUGH_NAME = re.compile(r"[^\[\]{}\\!:,]+")
"""Names of globs that other programs understand, too."""


class GlobError(ValueError):
    """A glob that is not valid. The message quotes the glob."""


def compile_globs(globs: Iterable[str]) -> re.Pattern[str]:
    """An expression whose `fullmatch` says whether one of the globs matches a path.

    The path is relative to the searched folder, without `./`, with surrogate escapes for bytes that are not
    UTF-8.

    Raises:
        GlobError: a glob is not valid, has `..` as a folder, or all have more than 1000 alternatives.
    """
    return re.compile("|".join(_expression(parts) for parts in _alternatives(globs)), re.DOTALL)


def rough_names(globs: Iterable[str], *, hidden: bool) -> list[str]:
    """Globs with `*` only, for names of files, that match all files that the globs match, and maybe more.

    Empty if there are no such globs. For programs that have other rules for globs.

    Args:
        globs: valid globs.
        hidden: whether names that begin with a dot are looked for.
    """
    names = set()
    for parts in _alternatives(globs):
        name = parts[-1].replace("?", "*")
        if not _ROUGH_NAME.fullmatch(name) or not name.strip("*") or (name[0] == "." and not hidden):
            return []
        names.add(re.sub(r"\*+", "*", name))
    return sorted(names)


def only_hidden_differ(globs: Sequence[str], *, hidden: bool) -> bool:
    """Whether the globs match every file that `rough_names` matches (without such names every file), apart
    from paths in which a name begins with a dot.

    Args:
        globs: valid globs.
        hidden: as for `rough_names`.
    """
    alternatives = [
        parts for parts in _alternatives(globs) if parts[:-1] in ([""], ["**"]) or parts == ["**"]
    ]
    if any(parts[-1] in ("*", "**") for parts in alternatives):
        return True
    everywhere = {re.sub(r"\*+", "*", parts[-1]) for parts in alternatives}
    names = rough_names(globs, hidden=hidden)
    return bool(names) and everywhere.issuperset(names)


def _alternatives(globs: Iterable[str]) -> Iterator[list[str]]:
    """Each glob without braces, as its names; the first one is empty if it applies to names at any depth."""
    left = _MAX_ALTERNATIVES
    for glob in globs:
        if ".." in glob.split("/"):
            raise GlobError(f"glob has '..', which leads out of the searched folder: {glob!r}")
        anywhere = [] if "/" in glob else [""]
        try:
            expanded = bracex.expand(glob.lstrip("/"), keep_escapes=True, limit=max(left, 1))
        except Exception as error:  # its class is not public
            raise GlobError(f"glob {glob!r} is not valid: {error}") from error
        left -= len(expanded)
        if left < 0:
            raise GlobError(f"the globs have more than {_MAX_ALTERNATIVES} alternatives in braces")
        for each in expanded:
            yield [*anywhere, *re.split("/+", each)]


def _expression(parts: list[str]) -> str:
    if parts[0] == "" and len(parts) == 2:
        return _ANY_FOLDERS + (_BELOW if parts[1] == "**" else _name(parts[1]))
    segments = _segments(parts)
    first, last = segments[0], segments[-1]
    if len(segments) == 1:
        return "/".join(first)
    expression = "".join(f"{name}/" for name in first)
    for names in segments[1:-1]:
        # The first place is as good as any: whether a name has a dot depends on the glob for it only, so a
        # later place would not leave more folders for the following `**`.
        expression += f"(?>{_FOLDERS}*?{''.join(f'{name}/' for name in names)})"
    return expression + (f"{_FOLDERS}*{'/'.join(last)}" if last else _BELOW)


def _segments(parts: list[str]) -> list[list[str]]:
    """The expressions for the names between two `**`."""
    segments: list[list[str]] = [[]]
    for at, part in enumerate(parts):
        if part != "**":
            segments[-1].append(_name(part))
        elif at == 0 or parts[at - 1] != "**":
            segments.append([])
    return segments


def _name(name: str) -> str:
    try:
        (expression,), _ = wcmatch.translate(name, flags=wcmatch.FORCEUNIX)
    except Exception as error:  # its class is not public
        raise GlobError(f"glob {name!r} is not valid: {error}") from error
    if expression == f"{_HEAD})$":
        return "(?!)"  # no name: after a slash at the end of the glob
    assert expression.startswith(_HEAD)
    assert expression.endswith(_TAIL)
    return f"(?:{expression[len(_HEAD) : -len(_TAIL)]})"
