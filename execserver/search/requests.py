"""Turns a request into the arguments of the program and the builder of its pages."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from execprotocol.search import GlobParams, SearchParams
from execserver.sandbox.glob_patterns import matches
from execserver.sandbox.policy import Policy
from execserver.search.arguments import glob_arguments, search_arguments, wanted_files
from execserver.search.output import GlobOutput, SearchOutput
from execserver.search.pages import GlobPages, SearchPages

if TYPE_CHECKING:
    import re


def prepare(
    params: SearchParams | GlobParams, policy: Policy | None
) -> tuple[list[str], SearchPages | GlobPages]:
    """The arguments of the program, and the builder of the pages. Blocks: links of the path are resolved.

    Args:
        params: the request.
        policy: its policy; None if nothing limits its files.

    Raises:
        InvalidRequest: the pattern, a glob or a name is not valid.
        InternalError: the packages for globs are not installed.
    """
    wanted = wanted_files(params.globs)
    # As ripgrep prints it.
    folder = params.path.rstrip("/") or "/"
    prefix = folder.rstrip("/") + "/"
    if isinstance(params, SearchParams):
        files = params.output == "files"
        denied = () if policy is None else policy.deny_globs
        is_wanted = _wanted_file(prefix, wanted, os.path.realpath(folder) if denied else folder, denied)
        output = SearchOutput(is_wanted, 0 if files else params.context_lines, files=files)
        return search_arguments(folder, params), SearchPages(output)
    from execprotocol.globs import only_hidden_differ

    assert wanted is not None  # there is at least one
    simple = only_hidden_differ(params.globs, hidden=params.hidden)
    return glob_arguments(folder, params), GlobPages(GlobOutput(prefix, wanted, only_hidden_differ=simple))


def _wanted_file(
    prefix: str, wanted: re.Pattern[str] | None, real: str, denied: tuple[str, ...]
) -> Callable[[str], bool]:
    """Whether the matches of a file are wanted, by its path.

    Args:
        prefix: the searched folder with a slash; or the searched file, which has no other file below it.
        wanted: an expression for relative paths; None for all.
        real: the searched path without links.
        denied: the patterns of the policy, which also apply to files that are newer than the sandbox.
    """

    def is_wanted(path: str) -> bool:
        relative = path.removeprefix(prefix)
        if relative == path:  # the searched file itself
            relative = os.path.basename(path)
            actual = real
        else:
            actual = f"{real.rstrip('/')}/{relative}"
        return (wanted is None or wanted.fullmatch(relative) is not None) and not matches(denied, actual)

    return is_wanted
