"""Check what changed each time a file is saved, until Ctrl-C: `make watch`.

A round runs ruff on the changed files, mypy on everything (it has a cache), and the tests of what changed:

- a changed test file, itself;
- a changed module of tests or source, the test files that name it in an import or a string;
- a changed page, the test that follows it.

Changed is what differs from the last commit and was saved since the last round; the first round takes all
that differs. A round stops at its first failure.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tests.docs.pages import ROOT, TUTORIAL
from tests.docs.pages import pages as followed_pages

POLL_SECONDS = 0.5
SOURCE_ROOTS = (PurePosixPath("clients/python"), PurePosixPath())
"""From where modules are imported, the longest first."""

PAGE_TEST = "tests/docs/test_blocks.py::test_a_page_does_what_it_says[{}]"

Times = dict[str, int]
"""Changed files, and when they were saved (ns)."""


def changed_files(root: Path) -> Times:
    """The files below `root` that differ from the last commit, without what git ignores."""
    command = ("git", "ls-files", "--modified", "--others", "--exclude-standard", "-z")
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return {name: (root / name).stat().st_mtime_ns for name in listed.split("\0") if (root / name).is_file()}


def module_name(path: str) -> str:
    """How a file is imported."""
    file = PurePosixPath(path).with_suffix("")
    base = next(each for each in SOURCE_ROOTS if file.is_relative_to(each))
    parts = file.relative_to(base).parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def related_tests(changed: Iterable[str], root: Path) -> list[str]:
    """What pytest is to run for changed files."""
    changed = set(changed)
    pages = changed & {str(page.relative_to(ROOT)) for page in followed_pages() if page != TUTORIAL}
    sources = {name for name in changed if name.endswith(".py")}
    tests = {name for name in sources if is_test(name)}
    modules = [module_name(name) for name in sources - tests]
    if modules:
        for file in (root / "tests").rglob("test_*.py"):
            text = file.read_text()
            if any(names(text, module) for module in modules):
                tests.add(str(file.relative_to(root)))
    return [*sorted(tests), *(PAGE_TEST.format(page) for page in sorted(pages))]


def is_test(path: str) -> bool:
    """Whether pytest collects a file."""
    return path.startswith("tests/") and PurePosixPath(path).name.startswith("test_")


def names(text: str, module: str) -> bool:
    """Whether a test names a module: `a.b.c` in full, or `from a.b import c`."""
    package, _, last = module.rpartition(".")
    if not package:
        return re.search(rf"^(import|from) {module}\b(?!\.)", text, re.MULTILINE) is not None
    in_full, by_parts = re.escape(module), rf"^from {re.escape(package)} import .*\b{last}\b"
    return re.search(rf"(?<![\w.]){in_full}\b|{by_parts}", text, re.MULTILINE) is not None


def run(program: str, *arguments: str) -> bool:
    """Whether a program of this environment ends well."""
    print(f"-- {program} {' '.join(arguments)[:100]}", flush=True)
    done = subprocess.run([sys.executable, "-m", program, *arguments], check=False)
    return done.returncode == 0


def check(changed: Sequence[str], root: Path) -> bool:
    """One round."""
    python = [name for name in changed if name.endswith(".py")]
    if python and not (
        run("ruff", "format", "--check", *python) and run("ruff", "check", *python) and run("mypy")
    ):
        return False
    tests = related_tests(changed, root)
    return not tests or run("pytest", "-q", "-x", *tests)


def main() -> None:
    """Watch the folder from which it is started."""
    root = Path.cwd()
    seen: Times = {}
    while True:
        times = changed_files(root)
        saved = [name for name, time_ns in times.items() if seen.get(name) != time_ns]
        seen = times
        if saved:
            print("-- all is well" if check(saved, root) else "-- failed", flush=True)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
