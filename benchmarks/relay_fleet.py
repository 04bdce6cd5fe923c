"""Compare a direct connection, one relay, and two relays with NATS between them, in one run.

    python -m benchmarks.relay_fleet                     # 5 rounds, about 3 minutes
    python -m benchmarks.relay_fleet --rounds 9 --json fleet.json
    python -m benchmarks.relay_fleet --quick             # small sizes, not to be quoted

What is measured, and where: `benchmarks/relay_paths.py`.
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

from benchmarks import relay_paths, relay_traffic, report
from benchmarks.compare import ROUNDS, rounds_of, time_limit
from benchmarks.relay_paths import SIDES, Side
from benchmarks.result import spread
from benchmarks.workloads.model import Row

BEGIN = "<!-- fleet: begin (written by `python -m benchmarks.relay_fleet --markdown`) -->"
END = "<!-- fleet: end -->"

ROUND_SECONDS = 90.0
"""A round of the three paths takes twenty on two cores."""

HEADER = (
    "row", "unit", "direct", "one relay", "two relays", "one : direct", "two : direct", "two : one",
    "quartiles of two",
)  # fmt: skip


@dataclass
class Result:
    """One row, with the values of all rounds for each path."""

    row: Row
    values: dict[Side, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def ratio(self, side: Side, other: Side) -> float | None:
        """Median of the ratios within rounds; above 1: `side` is better. None without pairs."""
        pairs = zip(self.values[side], self.values[other], strict=False)
        ratios = [a / b if self.row.better == "higher" else b / a for a, b in pairs if a and b]
        return statistics.median(ratios) if ratios else None

    def added(self, side: Side) -> float | None:
        """Median of what a path adds to the direct one within rounds, in the unit of the row."""
        pairs = zip(self.values["direct"], self.values[side], strict=False)
        added = [there - here for here, there in pairs]
        return statistics.median(added) if added else None

    def cells(self) -> tuple[str, ...]:
        """As every table shows it. Times of more than the direct path are in parentheses."""
        found = spread(self.values["fleet"]) if len(self.values["fleet"]) > 1 else None
        return (
            self.row.title,
            self.row.unit,
            *(self._shown(side) for side in SIDES),
            *(
                "" if ratio is None else f"{ratio:.2f}"
                for ratio in (
                    self.ratio("relayed", "direct"),
                    self.ratio("fleet", "direct"),
                    self.ratio("fleet", "relayed"),
                )
            ),
            "" if found is None else f"{report.number(found.lower)}..{report.number(found.upper)}",
        )

    def _shown(self, side: Side) -> str:
        values = self.values[side]
        if not values:
            return "-"
        added = None if side == "direct" or self.row.unit not in ("µs", "ms") else self.added(side)
        more = "" if added is None else f" ({'+' if added >= 0 else '-'}{report.number(abs(added))})"
        return report.number(statistics.median(values)) + more


def run(rounds: int, sizes: relay_traffic.Traffic) -> list[Result]:
    """Measure all paths in each round; which is first changes from round to round."""
    results = {row.name: Result(row) for row in relay_paths.ROWS}
    with tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as scratch:
        folder = Path(scratch)
        with relay_paths.paths(folder) as paths:
            for turn in range(rounds):
                first = turn % len(SIDES)
                with time_limit(ROUND_SECONDS):
                    for side in (*SIDES[first:], *SIDES[:first]):
                        measured = asyncio.run(relay_paths.measure(paths[side], sizes, folder))
                        for name, value in measured.items():
                            results[name].values[side].append(value)
    return list(results.values())


def table(results: Iterable[Result]) -> str:
    """For a terminal."""
    return report.aligned([HEADER, *(result.cells() for result in results)], range(2, 8))


def markdown(results: Iterable[Result], rounds: int, quick: bool) -> str:
    """The circumstances, and the table."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    scale = " with small sizes" if quick else ""
    text = [
        f"{time.strftime('%Y-%m-%d')}, {rounds} rounds{scale}. {facts}.",
        "",
        f"| {' | '.join(HEADER)} |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --- |",
        *(f"| {' | '.join(result.cells())} |".replace("  ", " ") for result in results),
    ]
    return "\n".join(text) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.relay_fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=rounds_of, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes, for trying things out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every value of every round")
    options = report.parse_options(parser, arguments, BEGIN, END)
    results = run(options.rounds, relay_traffic.QUICK if options.quick else relay_traffic.FULL)
    print(table(results))
    if options.json:
        rows = [asdict(result) for result in results]
        facts = {"rounds": options.rounds, "quick": options.quick, "machine": report.machine()}
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        report.put_between(options.markdown, BEGIN, END, markdown(results, options.rounds, options.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
