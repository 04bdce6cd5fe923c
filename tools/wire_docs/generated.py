"""Files that are made from the code: written by `make schemas`, compared by `make schemas-check`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def split_check(argv: list[str], usage: str, places: int) -> tuple[list[Path], bool] | None:
    """The paths on a generator's command line, and whether `--check` is among its arguments; None when
    there are not as many paths as it wants, which is said with `usage`.
    """
    paths = [Path(argument) for argument in argv if argument != "--check"]
    if len(paths) != places:
        sys.stderr.write(f"usage: python -m {usage}\n")
        return None
    return paths, "--check" in argv


def write_or_check_page(argv: list[str], module: str, source: str, make: Callable[[], str]) -> int:
    """Be the program of a generator of one page, `python -m MODULE [--check] FILE`; its exit status."""
    arguments = split_check(argv, f"{module} [--check] FILE", 1)
    if arguments is None:
        return 2
    (file,), check = arguments
    return write_or_check({file: make()}, source, check=check)


def write_or_check(
    wanted: Mapping[Path, str], source: str, *, check: bool, others: Iterable[Path] = ()
) -> int:
    """Write what is wanted, or say which files are not so.

    Args:
        wanted: the text of every file.
        source: what the files are made from, for the message.
        check: write nothing.
        others: files that may be there and are not wanted any more.

    Returns:
        The exit status: 1 when a check found a difference.
    """
    present = {path: path.read_text() for path in (*others, *wanted) if path.is_file()}
    if check:
        stale = [path for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path)]
        for path in sorted(stale):
            sys.stderr.write(f"{path} is not what {source} say: run `make schemas`\n")
        return 1 if stale else 0
    for path in present.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0
