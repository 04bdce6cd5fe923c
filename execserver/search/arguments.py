"""The arguments of ripgrep for a request. Nothing of a request can become an option.

Globs are matched by `execprotocol/globs.py`. Ripgrep gets those of them that mean at least as much to it, as
a type of file: unlike its own option for globs, a type does not show ignored files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError, InvalidRequest

if TYPE_CHECKING:
    from execprotocol.search import GlobParams, SearchParams

_COMMON = ("--no-config", "--color=never", "--no-require-git", "--no-ignore-global", "--no-follow")

_TYPE = "wanted"


def search_arguments(path: str, params: SearchParams) -> list[str]:
    """The arguments for `fs/search`.

    Args:
        path: the searched folder or file, absolute.
        params: the request.

    Raises:
        InvalidRequest: the pattern or a name is not valid.
    """
    pattern = params.pattern
    if params.multiline and not params.regex:
        raise _refused_pattern("`multiline` needs `regex`", "multiline")
    if "\0" in pattern:
        raise _refused_pattern("`pattern` has a NUL byte; with `regex`, write \\x00")
    if "\n" in pattern and not params.multiline:
        raise _refused_pattern("`pattern` has a newline, which needs `regex` and `multiline`")
    arguments = [*_COMMON, "--json", "--no-mmap", *_tree_arguments(params)]
    if not params.regex:
        arguments.append("--fixed-strings")
    if params.ignore_case:
        arguments.append("--ignore-case")
    if params.multiline:
        arguments.append("--multiline")
    if params.output == "files":
        arguments.append("--max-count=1")
    elif params.context_lines:
        arguments.append(f"--context={params.context_lines}")
    return [*arguments, "--regexp", pattern, "--", path]


def glob_arguments(path: str, params: GlobParams) -> list[str]:
    """The arguments for `fs/glob`.

    Args:
        path: the searched folder, absolute.
        params: the request.

    Raises:
        InvalidRequest: a name is not valid.
    """
    return [*_COMMON, "--files", "--null", *_tree_arguments(params), "--", path]


def wanted_files(globs: list[str]) -> re.Pattern[str] | None:
    """An expression for the relative paths of the files that globs match; None for all.

    Raises:
        InvalidRequest: a glob is not valid.
        InternalError: the packages for globs are not installed.
    """
    if not globs:
        return None
    try:
        from execprotocol.globs import GlobError, compile_globs
    except ImportError:
        raise InternalError(
            "this executor has no package wcmatch, which globs need: install it where the daemon runs, with "
            '`pip install "execserver[search]"`',
            name="search_unavailable",
        ) from None
    try:
        return compile_globs(globs)
    except GlobError as error:
        raise InvalidRequest(str(error), name="glob_refused", field="globs") from None


def _tree_arguments(params: SearchParams | GlobParams) -> list[str]:
    arguments = []
    if params.hidden:
        arguments.append("--hidden")
    if not params.ignore_rules:
        arguments.append("--no-ignore")
    for name in params.exclude_dirs:
        if "/" in name or "\0" in name:
            raise InvalidRequest(
                f"`excludeDirs` has names of folders, without slashes: {name!r}",
                name="glob_refused",
                field="excludeDirs",
            )
        # Every character that may have a meaning is escaped.
        escaped = re.sub(r"([^\w.\-])", r"\\\1", name)
        arguments.append(f"--glob=!{escaped}/")
    if params.globs:
        from execprotocol.globs import rough_names

        names = rough_names(params.globs, hidden=params.hidden)
        for name in names:
            arguments += ["--type-add", f"{_TYPE}:{name}"]
        if names:
            arguments.append(f"--type={_TYPE}")
    return arguments


def _refused_pattern(text: str, field: str = "pattern") -> InvalidRequest:
    return InvalidRequest(text, name="pattern_refused", field=field)
