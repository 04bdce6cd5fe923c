"""Measure whole command lines: the start of a command, and copies of directories, beside ssh and tar.

    python -m benchmarks.commands                    # about 2 minutes
    python -m benchmarks.commands --only start --rounds 30
    python -m benchmarks.commands --only trees
    python -m benchmarks.commands --quick            # few files, not to be quoted

Wall time of whole processes, as a user at a terminal waits for them. Commands of docker and ssh are measured
where these programs are.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import report
from benchmarks.compare import rounds_of, time_limit
from benchmarks.server import ServerUnderTest
from tests.support.slow_line import End, slow_line
from tests.support.ssh_server import PROGRAMS, OtherMachine, missing_programs, ssh_server

BEGIN = "<!-- commands: begin (written by `python -m benchmarks.commands --markdown`) -->"
END = "<!-- commands: end -->"

PARTS = ("start", "trees")

START_ROUNDS = 15
TREE_ROUNDS = 3
"""A tree takes seconds where a command takes a tenth of one."""

ROW_SECONDS = 120.0
"""A row that takes longer is broken, not slow."""

ROUND_TRIP_SECONDS = 0.04
"""Of the slow line, which ssh and execserver share: as to a machine some thousands of kilometres away."""

COMMAND_AIM_MS = 120.0


@dataclass
class Row:
    """One command line."""

    part: str
    title: str
    argv: Sequence[str]
    aim_ms: float | None = None
    beside: "Row | None" = None
    """The row to compare with, within the same round: other work on the machine slows down both."""
    prepare: Callable[[], None] | None = None
    """Called before each run, not measured."""
    check: Callable[[], bool] | None = None
    """Called after each run: whether it did its work."""
    milliseconds: list[float] = field(default_factory=list)

    def run(self, environment: dict[str, str]) -> None:
        """Run it once.

        Raises:
            RuntimeError: it failed.
        """
        if self.prepare is not None:
            self.prepare()
        begin = time.perf_counter()
        done = subprocess.run(
            self.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        self.milliseconds.append((time.perf_counter() - begin) * 1000)
        if done.returncode != 0 or (self.check is not None and not self.check()):
            raise RuntimeError(f"{self.title}: exit status {done.returncode}: {done.stderr.decode()}")

    def cells(self) -> tuple[str, ...]:
        """As every table shows it."""
        median = statistics.median(self.milliseconds)
        verdict = "" if self.aim_ms is None else ("ok" if median <= self.aim_ms else "MISS")
        aim = "" if self.aim_ms is None else f"≤{report.number(self.aim_ms)}"
        ratio = ""
        if self.beside is not None:
            pairs = zip(self.milliseconds, self.beside.milliseconds, strict=True)
            name = self.beside.title.partition(",")[0].partition(":")[0]
            ratio = f"{report.number(statistics.median(a / b for a, b in pairs))} times {name}"
        least, most = report.number(min(self.milliseconds)), report.number(max(self.milliseconds))
        return self.title, report.number(median), f"{least}..{most}", ratio, aim, verdict


HEADER = ("command", "ms", "range", "ratio", "aim", "verdict")


@dataclass(frozen=True)
class Sizes:
    """The numbers of files."""

    local: int
    remote: int


FULL, QUICK = Sizes(local=2000, remote=100), Sizes(local=100, remote=10)


class Place:
    """A daemon, a folder and perhaps an sshd for the commands to work with."""

    def __init__(self, folder: Path, daemon: ServerUnderTest, other: OtherMachine | None) -> None:
        self.folder = folder
        self.url = daemon.url
        self.other = other
        self.execserver = str(PROGRAMS / "execserver")
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        # Without PYTHONDONTWRITEBYTECODE: an installed package is compiled, too.
        self.environment = {**kept, "HOME": str(folder), "EXECSERVER_URL": self.url}

    def started(self, *command: str) -> str:
        """Start a detached command; its id."""
        return subprocess.run(
            [self.execserver, "run", "--detach", "--", *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()


def start_rows(place: Place) -> Iterator[Row]:
    """The commands that people and scripts run often."""
    python = "python -c pass: the start of an interpreter"
    interpreter = Row("start", python, [str(PROGRAMS / "python"), "-c", "pass"])

    def row(title: str, *argv: str, aim: float | None = None) -> Row:
        return Row("start", title, argv, aim, interpreter)

    ours = place.execserver
    running, ended = place.started("sleep", "600"), place.started("echo", "x")
    file = place.folder / "file"
    file.write_bytes(os.urandom(1000))
    frequent = COMMAND_AIM_MS
    yield interpreter
    yield row("execserver --help", ours, "--help")
    yield row("execserver run --help", ours, "run", "--help")
    yield row("execserver run -- true", ours, "run", "--", "true", aim=frequent)
    yield row("execserver ps", ours, "ps", aim=frequent)
    yield row("execserver logs ID", ours, "logs", ended, aim=frequent)
    yield row("execserver kill -CONT ID", ours, "kill", "-CONT", running, aim=frequent)
    yield row("execserver attach ID, of a process that has ended", ours, "attach", ended, aim=frequent)
    yield row("execserver cp FILE :FILE", ours, "cp", str(file), f":{file}-copy", aim=frequent)
    if (docker := shutil.which("docker")) is not None:
        yield row("docker --version", docker, "--version")
    if place.other is not None:
        yield row("ssh HOST true, to an sshd on this machine", *place.other.ssh(), "true")


def tree_rows(place: Place, sizes: Sizes, far: End, far_ssh: End | None) -> Iterator[Row]:
    """Copies of directories, here and over a slow line."""
    for count, where, url, port, aim in (
        (sizes.local, "on this machine", place.url, None, 1000.0),
        (
            sizes.remote,
            "over a line of 40 ms",
            f"unix://{far.path}",
            None if far_ssh is None else far_ssh.port,
            1500.0,
        ),
    ):
        source, target = place.folder / f"source-{count}", place.folder / f"target-{count}"
        make_tree(source, count)

        def clear(target: Path = target) -> None:
            shutil.rmtree(target, ignore_errors=True)

        def is_whole(target: Path = target, count: int = count) -> bool:
            return sum(len(files) for _, _, files in os.walk(target)) == count

        ours = (place.execserver, "cp", "-rq", "--url", url, str(source), f":{target}")
        files = f"{count:,} tiny files {where}"
        tar = None
        if place.other is not None:
            ssh = " ".join(place.other.ssh(port))
            pipe = f"tar -C {source} -cf - . | {ssh} 'mkdir {target} && tar -C {target} -xf -'"
            title = f"tar | ssh tar, {files}"
            tar = Row("trees", title, ("sh", "-c", pipe), prepare=clear, check=is_whole)
            yield tar
        yield Row("trees", f"execserver cp -r, {files}", ours, aim, tar, clear, is_whole)


def make_tree(folder: Path, count: int) -> None:
    """A tree of tiny files, fifty in a directory."""
    for number in range(count):
        file = folder / f"directory-{number // 50}" / f"file-{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the content of file {number}\n")


@contextmanager
def places() -> Iterator[Place]:
    """A place with a daemon, and an sshd if there is one on this machine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="execserver-bench-")))
        command = f"{PROGRAMS / 'execserver'} serve --listen {{listen}} --session-ttl 600"
        daemon = stack.enter_context(ServerUnderTest(command, "unix", folder))
        other = None if missing_programs() else stack.enter_context(ssh_server())
        yield Place(folder, daemon, other)


def measure(rows: Sequence[Row], environment: dict[str, str], rounds: int) -> None:
    """Run each row once unmeasured, and then all rows in turn."""
    for turn in range(rounds + 1):
        for row in rows:
            with time_limit(ROW_SECONDS):
                row.run(environment)
            if turn == 0 and rounds > 0:
                row.milliseconds.clear()  # files are in the page cache, and modules are compiled, from now on


def measured(rounds: int | None, only: str | None, sizes: Sizes) -> list[Row]:
    """The rows, with their values."""
    rows: list[Row] = []
    with places() as place, ExitStack() as stack:
        if only != "trees":
            started = list(start_rows(place))
            measure(started, place.environment, rounds or START_ROUNDS)
            rows += started
        if only != "start":
            daemon = End(path=Path(place.url.removeprefix("unix://")))
            near = End(path=place.folder / "line.sock")
            far = stack.enter_context(slow_line(near, daemon, ROUND_TRIP_SECONDS))
            far_ssh = None
            if place.other is not None:
                sshd = End(port=place.other.port)
                far_ssh = stack.enter_context(slow_line(End(), sshd, ROUND_TRIP_SECONDS))
            copied = list(tree_rows(place, sizes, far, far_ssh))
            measure(copied, place.environment, rounds or TREE_ROUNDS)
            rows += copied
    return rows


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    return report.aligned([HEADER, *(row.cells() for row in rows)])


def markdown(rows: Sequence[Row], quick: bool) -> str:
    """The circumstances and the table."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    scale = " Few files." if quick else ""
    counts = sorted({len(row.milliseconds) for row in rows}, reverse=True)
    rounds = " and ".join(str(count) for count in counts)
    text = [
        f"{time.strftime('%Y-%m-%d')}, medians of {rounds} rounds.{scale} {facts}.",
        "",
        f"| {' | '.join(HEADER)} |",
        "| --- | --: | --- | --- | --- | --- |",
        *(_markdown_row(row.cells()) for row in rows),
    ]
    return "\n".join(text) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |".replace("  ", " ")


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.commands",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=rounds_of, help=f"default: {START_ROUNDS} of commands, {TREE_ROUNDS} of trees"
    )
    parser.add_argument("--only", choices=PARTS, help="default: both")
    parser.add_argument("--quick", action="store_true", help="few files, for trying things out")
    options = report.parse_options(parser, arguments, BEGIN, END)
    rows = measured(options.rounds, options.only, QUICK if options.quick else FULL)
    print(table(rows))
    if options.markdown:
        report.put_between(options.markdown, BEGIN, END, markdown(rows, options.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
