"""Measure this server beside the reference, alternating, in one run.

    python -m benchmarks.compare                                   # all rows, reference from .interop
    python -m benchmarks.compare --only spawn,output --rounds 3 --transport stdio
    python -m benchmarks.compare --candidate-only --only rtt       # one command, for profiling
    python -m benchmarks.compare --gate                            # exit status 1: a row missed twice

A command line is a template; `{listen}` becomes `stdio`, `ws://127.0.0.1:PORT` or `unix:///PATH`.
"""

import argparse
import gc
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn, cast, get_args

from benchmarks import report
from benchmarks.reference import ReferenceMissingError, reference_command
from benchmarks.result import RowResult, Verdict
from benchmarks.server import ServerUnderTest
from benchmarks.targets import Table, target
from benchmarks.wire import Transport
from benchmarks.workloads import FULL, QUICK, WORKLOADS, Row, Sizes, Workload

Side = Literal["reference", "candidate", "generator"]
"""The generator is measured in the reference's place: at the candidate's server, or beside it."""

# The longest workload (1,000 processes on a loaded machine) stays well below.
WORKLOAD_SECONDS = 120.0
# A whole run of five rounds takes about ten minutes on two cores.
ROUNDS = 5
MOST_ROUNDS = 50
DEFAULT_CANDIDATE = f"{Path(sys.prefix) / 'bin' / 'execserver'} serve --listen {{listen}}"


@dataclass(frozen=True)
class Competitor:
    """One side over one transport."""

    side: Side
    transport: Transport


# Per measured group: who runs in a round, in this order and the next time in reverse. A Unix socket exists
# only on our side, so its rows are paired with what the reference did over WebSocket in the same round.
GROUPS: dict[str, tuple[Competitor, ...]] = {
    "stdio": (Competitor("reference", "stdio"), Competitor("candidate", "stdio")),
    "network": (
        Competitor("reference", "ws"),
        Competitor("candidate", "ws"),
        Competitor("candidate", "unix"),
    ),
    "library": (Competitor("generator", "unix"), Competitor("candidate", "unix")),
}


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after `seconds`, also out of a blocking read. Main thread only."""

    def expire(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _collector_off() -> Iterator[None]:
    """The generator's own garbage collection would show up in the servers' p99."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class Comparison:
    """What is compared and how; `run` does it.

    `reference` or `candidate` may be None: then only the other side is measured.
    """

    reference: str | None
    candidate: str | None
    transports: tuple[Transport, ...]
    rounds: int
    sizes: Sizes = FULL
    with_spool: bool = False
    log: Path | None = None

    def run(
        self, workloads: tuple[Workload, ...], done: Callable[[RowResult], None] = lambda _: None
    ) -> list[RowResult]:
        """Measure; `done` hears of every row as soon as its rounds are complete."""
        results = []
        # The reference makes no sandboxes when its home is below /tmp.
        with tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as scratch:
            for name, group in GROUPS.items():
                for workload in workloads:
                    if (workload.generator is not None) is not (name == "library"):
                        continue
                    rows = self._rows(group, workload)
                    if not rows:
                        continue
                    for turn in range(self.rounds):
                        self._round(turn, group, workload, rows, Path(scratch))
                    results += rows
                    for row in rows:
                        done(row)
        return results

    def _wanted(self, competitor: Competitor, workload: Workload) -> bool:
        if competitor.transport not in workload.transports:
            return False
        if competitor.side == "candidate":
            return self.candidate is not None and competitor.transport in self.transports
        if competitor.side == "generator":
            return self.candidate is not None and competitor.transport in self.transports
        if self.reference is None:
            return False
        # The reference's WebSocket stands in for the Unix socket it does not have.
        stands_in = competitor.transport == "ws" and "unix" in self.transports and self.candidate is not None
        return competitor.transport in self.transports or stands_in

    def _rows(self, group: tuple[Competitor, ...], workload: Workload) -> list[RowResult]:
        reference = group[0].transport
        if self.candidate is None:
            transports = [group[0].transport] if self._wanted(group[0], workload) else []
        else:
            transports = [
                member.transport
                for member in group
                if member.side == "candidate" and self._wanted(member, workload)
            ]
        return [
            self._row(workload, row, transport, reference)
            for transport in transports
            for row in workload.rows
        ]

    def _row(self, workload: Workload, row: Row, transport: Transport, reference: Transport) -> RowResult:
        table: Table = transport if workload.generator is None else workload.beside
        wanted = target(row.name, table, with_spool=self.with_spool)
        return RowResult(workload.name, row, table, transport, reference, wanted)

    def _round(
        self,
        turn: int,
        group: tuple[Competitor, ...],
        workload: Workload,
        rows: list[RowResult],
        scratch: Path,
    ) -> None:
        members = [member for member in group if self._wanted(member, workload)]
        for member in members if turn % 2 == 0 else reversed(members):
            of_member = [
                row
                for row in rows
                if member.transport
                == (row.transport if member.side == "candidate" else row.reference_transport)
            ]
            try:
                measured = self._measure(member, workload, scratch)
            except (OSError, EOFError, AssertionError) as error:
                print(f"{workload.name} {member.side} {member.transport}: {error!r}", file=sys.stderr)
                if member.side == "candidate":
                    for row in of_member:
                        row.failures.append(f"round {turn + 1}: {error!r}")
                continue
            for row in of_member:
                if member.side == "candidate":
                    row.candidate[turn] = measured[row.row.name]
                elif row.row.name in measured:
                    row.reference[turn] = measured[row.row.name]

    def _measure(self, member: Competitor, workload: Workload, scratch: Path) -> dict[str, float]:
        command = self.reference if member.side == "reference" else self.candidate
        run = workload.run if member.side != "generator" else workload.generator
        if command is None or run is None:
            raise AssertionError("a side without a command is not measured")
        if member.side == "reference":
            command = f"{command} {workload.reference_options}".strip()
        with (
            ServerUnderTest(command, member.transport, scratch, self.log) as server,
            time_limit(WORKLOAD_SECONDS),
            _collector_off(),
        ):
            connection = server.connect()
            try:
                return dict(run(server, connection, self.sizes))
            finally:
                connection.close()


def _gate(comparison: Comparison, results: list[RowResult], print_row: Callable[[RowResult], None]) -> int:
    """Run again what missed; 1 when a row misses a second time in a row."""
    missed = [result for result in results if result.verdict is Verdict.MISS]
    if not missed:
        print("gate: every row meets its target")
        return 0
    print(f"gate: {len(missed)} rows missed, measuring them again")
    names = {result.workload for result in missed}
    again = comparison.run(tuple(workload for workload in WORKLOADS if workload.name in names), print_row)
    first = {(result.table, result.row.name) for result in missed}
    twice = [
        result
        for result in again
        if result.verdict is Verdict.MISS and (result.table, result.row.name) in first
    ]
    for result in twice:
        print(f"gate: {result.table} {result.row.title} misses twice (target {result.target})")
    if not twice:
        print("gate: no row missed twice")
    return 1 if twice else 0


def _chosen(text: str) -> tuple[Workload, ...]:
    """Workloads named by their own name or by one of their rows."""
    names = {name.strip() for name in text.split(",")}
    known = {name for workload in WORKLOADS for name in (workload.name, *(row.name for row in workload.rows))}
    if names - known:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(names - known))}; known: {', '.join(w.name for w in WORKLOADS)}"
        )
    return tuple(
        workload for workload in WORKLOADS if names & {workload.name, *(row.name for row in workload.rows)}
    )


def _transports(text: str) -> tuple[Transport, ...]:
    names = tuple(name.strip() for name in text.split(","))
    known = get_args(Transport)
    if set(names) - set(known):
        raise argparse.ArgumentTypeError(f"transports are {', '.join(known)}")
    return cast("tuple[Transport, ...]", names)


def rounds_of(text: str) -> int:
    """The value of `--rounds`."""
    rounds = int(text)
    if not 1 <= rounds <= MOST_ROUNDS:
        raise argparse.ArgumentTypeError(f"between 1 and {MOST_ROUNDS}")
    return rounds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reference", metavar="CMD", help="reference server (default: the one in .interop)")
    parser.add_argument("--candidate", metavar="CMD", default=DEFAULT_CANDIDATE, help="default: %(default)s")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--reference-only", action="store_true", help="measure only the reference")
    alone.add_argument("--candidate-only", action="store_true", help="measure only the candidate")
    parser.add_argument(
        "--transport", type=_transports, default=_transports("stdio,ws,unix"), help="default: stdio,ws,unix"
    )
    parser.add_argument("--only", type=_chosen, default=WORKLOADS, metavar="NAME,…", help="workloads or rows")
    parser.add_argument("--rounds", type=rounds_of, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes, for trying things out")
    parser.add_argument("--with-spool", action="store_true", help="targets of output that is kept on disk")
    parser.add_argument(
        "--gate", action="store_true", help="run missing rows again; exit 1 when one misses twice"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every value of every round")
    parser.add_argument("--server-log", type=Path, metavar="FILE", help="append the servers' standard error")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison; the exit status."""
    options = report.parse_options(_parser(), arguments, report.BEGIN, report.END)
    reference: str | None = None
    if not options.candidate_only:
        try:
            reference = options.reference or reference_command()
        except ReferenceMissingError as error:
            print(error, file=sys.stderr)
            return 2
    comparison = Comparison(
        reference,
        None if options.reference_only else options.candidate,
        options.transport,
        options.rounds,
        QUICK if options.quick else FULL,
        options.with_spool,
        options.server_log,
    )

    def print_row(result: RowResult) -> None:
        print(report.line(result), flush=True)

    print(report.heading(comparison.reference, comparison.candidate, comparison.rounds))
    results = comparison.run(options.only, print_row)
    run = report.Run(comparison.reference, comparison.candidate, comparison.rounds, options.quick)
    if options.json:
        report.write_json(options.json, run, results)
    if options.markdown:
        report.write_markdown(options.markdown, run, results)
    if options.gate:
        return _gate(comparison, results, print_row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
