"""Measure what a relay costs: clients through it beside clients of a server that listens, and a crowd.

    python -m benchmarks.relay                        # 5 rounds, about 3 minutes
    python -m benchmarks.relay --rounds 9 --only traffic
    python -m benchmarks.relay --only crowd --json crowd.json
    python -m benchmarks.relay --quick                # small sizes, not to be quoted

Relay, servers and clients share this machine, so that the figures are of its cores as much as of the relay.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks import relay_crowd, relay_traffic, report
from benchmarks.compare import ROUNDS, rounds_of, time_limit
from benchmarks.relay_traffic import Way, Ways
from benchmarks.result import spread
from benchmarks.workloads.model import Measured, Row

BEGIN = "<!-- relay: begin (written by `python -m benchmarks.relay --markdown`) -->"
END = "<!-- relay: end -->"

ROUND_SECONDS = 60.0
"""A round of both sides takes ten on two cores."""

CROWD_SECONDS = 180.0
"""Six thousand sockets come in half a minute."""

PARTS = ("traffic", "crowd")


@dataclass(frozen=True)
class Aim:
    """What a row is to reach in the median of its rounds: no more than this above the direct way in the same
    round, or at least this rate.
    """

    value: float
    unit: str
    added: bool

    def __str__(self) -> str:
        return f"≤{self.value:g} {self.unit} added" if self.added else f"≥{self.value:g} {self.unit}"

    def met(self, direct: list[float], relayed: list[float]) -> bool:
        """Whether it is; the lists have the same rounds."""
        if self.added:
            # Within rounds: the direct way has two speeds here, and medians of each way alone would be paired
            # as they never were.
            added = [there - here for here, there in zip(direct, relayed, strict=True)]
            return statistics.median(added) <= self.value
        return statistics.median(relayed) >= self.value


AIMS = {
    "rtt_p50": Aim(250, "µs", added=True),
    "output": Aim(200, "MB/s", added=False),
    "read_file": Aim(200, "MB/s", added=False),
    "read_blocks": Aim(200, "MB/s", added=False),
}


@dataclass
class Result:
    """One row, with the values of all rounds."""

    part: Literal["traffic", "crowd"]
    row: Row
    direct: list[float] = field(default_factory=list)
    relayed: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """Median of the ratios within rounds, above 1 = better through the relay; None without pairs."""
        pairs = [(a, b) for a, b in zip(self.direct, self.relayed, strict=False) if a and b]
        ratios = [b / a if self.row.better == "higher" else a / b for a, b in pairs]
        return statistics.median(ratios) if ratios else None

    @property
    def verdict(self) -> str:
        """How it stands to its aim; empty without one."""
        aim = AIMS.get(self.row.name)
        if aim is None or not self.relayed:
            return ""
        return "ok" if aim.met(self.direct, self.relayed) else "MISS"

    def cells(self) -> tuple[str, ...]:
        """As every table shows it."""
        aim = AIMS.get(self.row.name)
        return (
            self.row.title,
            self.row.unit,
            _median(self.direct),
            _median(self.relayed),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            _quartiles(self.relayed),
            _range(self.relayed),
            str(aim) if aim else "",
            self.verdict,
        )


HEADER = ("row", "unit", "direct", "relay", "ratio", "relay's quartiles", "relay's range", "aim", "verdict")


def traffic(rounds: int, sizes: relay_traffic.Traffic) -> list[Result]:
    """Both ways in turn; which is first changes from round to round."""
    results = {row.name: Result("traffic", row) for row in relay_traffic.ROWS}
    with tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as scratch:
        folder = Path(scratch)
        with Ways(folder) as ways:
            for turn in range(rounds):
                sides: list[tuple[Way, Literal["direct", "relayed"]]] = [
                    (ways.direct, "direct"),
                    (ways.relayed, "relayed"),
                ]
                with time_limit(ROUND_SECONDS):
                    for way, side in sides if turn % 2 == 0 else reversed(sides):
                        measured = asyncio.run(relay_traffic.measure(way, sizes, folder))
                        for name, value in measured.items():
                            values: list[float] = getattr(results[name], side)
                            values.append(value)
    return list(results.values())


def crowd(sizes: relay_crowd.Crowd) -> list[Result]:
    """Once: it is the same thousands of times anyway."""
    results = {row.name: Result("crowd", row) for row in relay_crowd.ROWS}
    with (
        tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as scratch,
        time_limit(CROWD_SECONDS),
    ):
        folder = Path(scratch)

        def take(side: Literal["direct", "relayed"], measured: Measured) -> None:
            for name, value in measured.items():
                values: list[float] = getattr(results[name], side)
                values.append(value)

        take("relayed", asyncio.run(relay_crowd.idle(sizes, folder / "crowd")))
        with Ways(folder) as ways:
            take("direct", asyncio.run(relay_crowd.whole_connections(sizes, ways.direct)))
            take("relayed", asyncio.run(relay_crowd.whole_connections(sizes, ways.relayed)))
    return list(results.values())


def table(results: Iterable[Result]) -> str:
    """For a terminal."""
    return report.aligned([HEADER, *(result.cells() for result in results)], range(2, 5))


def markdown(results: list[Result], rounds: int, quick: bool) -> str:
    """The circumstances, and a table for each part."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    scale = " with small sizes" if quick else ""
    text = [f"{time.strftime('%Y-%m-%d')}, {rounds} rounds{scale}; the crowd came once. {facts}."]
    for part in PARTS:
        rows = [result.cells() for result in results if result.part == part]
        if rows:
            text += [
                "",
                f"| {' | '.join(HEADER)} |",
                "| --- | --- | --: | --: | --: | --- | --- | --- | --- |",
            ]
            text += [f"| {' | '.join(cells)} |".replace("  ", " ") for cells in rows]
    return "\n".join(text) + "\n"


def _median(values: list[float]) -> str:
    return report.number(statistics.median(values)) if values else "-"


def _quartiles(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    found = spread(values)
    return f"{report.number(found.lower)}..{report.number(found.upper)}"


def _range(values: list[float]) -> str:
    return f"{report.number(min(values))}..{report.number(max(values))}" if len(values) > 1 else ""


def _write_json(path: Path, results: list[Result], rounds: int, quick: bool) -> None:
    rows = [asdict(result) | {"ratio": result.ratio, "verdict": result.verdict or None} for result in results]
    run = {"rounds": rounds, "quick": quick}
    path.write_text(json.dumps({"run": run, "machine": report.machine(), "rows": rows}, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.relay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=rounds_of, default=ROUNDS, help="of traffic; default: %(default)s")
    parser.add_argument("--only", choices=PARTS, help="default: both")
    parser.add_argument("--quick", action="store_true", help="small sizes, for trying things out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every value of every round")
    options = report.parse_options(parser, arguments, BEGIN, END)
    results: list[Result] = []
    if options.only != "crowd":
        sizes = relay_traffic.QUICK if options.quick else relay_traffic.FULL
        results += traffic(options.rounds, sizes)
    if options.only != "traffic":
        try:
            results += crowd(relay_crowd.QUICK if options.quick else relay_crowd.FULL)
        except relay_crowd.CrowdError as error:
            print(error, file=sys.stderr)
            return 2
    print(table(results))
    if options.json:
        _write_json(options.json, results, options.rounds, options.quick)
    if options.markdown:
        text = markdown(results, options.rounds, options.quick)
        report.put_between(options.markdown, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
