"""Results as text, as a Markdown table and as JSON."""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.result import RowResult, Verdict

BEGIN = "<!-- results: begin (written by `python -m benchmarks.compare --markdown`) -->"
END = "<!-- results: end -->"

_TITLES = {
    "stdio": "stdio",
    "ws": "WebSocket",
    "unix": "Unix socket (beside the reference over WebSocket, which has no Unix socket)",
    "library": "Client library (beside the load generator at the same server, over a Unix socket)",
    "programs": "Searches, changes and ports (beside ripgrep and ssh -L)",
}


@dataclass(frozen=True)
class Run:
    """What was run."""

    reference: str | None
    candidate: str | None
    rounds: int
    quick: bool


def number(value: float) -> str:
    """Three digits, or whole thousands."""
    if value == 0 or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def aligned(lines: Sequence[Sequence[str]], right: Container[int] = ()) -> str:
    """A table for a terminal.

    Args:
        lines: the cells of each line, the heads first.
        right: the numbers of the columns that are aligned on the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _value(values: dict[int, float]) -> str:
    return number(statistics.median(values.values())) if values else "-"


def _times(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 20 else f"{value:,.0f}"


def _ratio(result: RowResult) -> tuple[str, str, str]:
    """Median, quartiles and range of the paired ratios."""
    ratio = result.ratio
    if ratio is None:
        return "-", "", ""
    if math.isinf(ratio.median):
        return "∞ (reference stops)", "", ""
    return (
        _times(ratio.median),
        f"{_times(ratio.lower)}..{_times(ratio.upper)}",
        f"{_times(ratio.least)}..{_times(ratio.most)}",
    )


def heading(reference: str | None, candidate: str | None, rounds: int) -> str:
    """What is compared, and the head of the table."""
    columns = f"{'':8} {'row':42} {'unit':6} {'reference':>10} {'candidate':>10}  {'ratio':>7}"
    return (
        f"reference: {reference or '-'}\ncandidate: {candidate or '-'}\n"
        f"{rounds} rounds, medians; ratio above 1 = candidate better\n\n"
        f"{columns}  {'quartiles':16} {'range':16} {'must':12} verdict"
    )


def line(result: RowResult) -> str:
    """One row of the table on the terminal."""
    median, quartiles, whole = _ratio(result)
    must = str(result.target) if result.target else ""
    verdict = str(result.verdict)
    if result.failures:
        verdict += f" ({len(result.failures)} rounds failed: {result.failures[0]})"
    return (
        f"{result.table:8} {result.row.title:42} {result.row.unit:6} {_value(result.reference):>10} "
        f"{_value(result.candidate):>10}  {median:>7}  {quartiles:16} {whole:16} {must:12} {verdict}"
    ).rstrip()


def machine() -> dict[str, str]:
    """The facts about this machine that numbers depend on."""
    model = "unknown"
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            model = text.split(":", 1)[1].strip()
            break
    facts = {
        "processor": model,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }
    for package in ("execserver", "uvloop", "msgspec", "pybase64", "picows"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def markdown(run: Run, results: list[RowResult]) -> str:
    """The tables that have rows, and the circumstances of the run."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    scale = " with small sizes" if run.quick else ""
    text = [
        f"{time.strftime('%Y-%m-%d')}, {run.rounds} rounds{scale}. {facts}.",
        "",
        f"Reference `{_shown(run.reference)}`, candidate `{_shown(run.candidate)}`.",
    ]
    for table, title in _TITLES.items():
        rows = [result for result in results if result.table == table]
        if not rows:
            continue
        text += [
            "",
            f"### {title}",
            "",
            "| row | unit | reference | candidate | ratio | quartiles | range | must | verdict |",
            "| --- | --- | --: | --: | --: | --- | --- | --- | --- |",
        ]
        for result in rows:
            median, quartiles, whole = _ratio(result)
            verdict = f"**{result.verdict}**" if result.verdict is Verdict.MISS else str(result.verdict)
            cells = (
                result.row.title.replace("|", "\\|"),
                result.row.unit,
                _value(result.reference),
                _value(result.candidate),
                median,
                quartiles,
                whole,
                str(result.target or ""),
                verdict,
            )
            text.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(text) + "\n"


def _shown(command: str | None) -> str:
    """The command line without the folder of its program."""
    if command is None:
        return "-"
    program, _, rest = command.partition(" ")
    return f"{Path(program).name} {rest}".strip()


def parse_options(
    parser: argparse.ArgumentParser, arguments: list[str] | None, begin: str, end: str
) -> argparse.Namespace:
    """Parse the options of a benchmark, with `--markdown` for a page with these markers.

    From here on, SIGTERM ends the program by an exception, so that its servers end too.
    """
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="table, put between the markers of an existing page"
    )
    options = parser.parse_args(arguments)
    if options.markdown and not takes_markdown(options.markdown, begin, end):
        parser.error(f"{options.markdown} has no lines {begin!r} and {end!r}")
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))
    return options


def takes_markdown(path: Path, begin: str = BEGIN, end: str = END) -> bool:
    """Whether a page is new or has the markers; no other page is touched."""
    if not path.exists():
        return True
    page = path.read_text()
    return begin in page and end in page[page.index(begin) :]


def write_markdown(path: Path, run: Run, results: list[RowResult]) -> None:
    """Replace what is between the markers of a page that `takes_markdown`, or write a new one."""
    put_between(path, BEGIN, END, markdown(run, results))


def put_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what is between two markers of a page that `takes_markdown`, or write a new one."""
    page = path.read_text() if path.exists() else f"# Benchmarks\n\n{begin}\n{end}\n"
    before, rest = page.split(begin, 1)
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end, 1)[1]}")


def write_json(path: Path, run: Run, results: list[RowResult]) -> None:
    """Everything, every round included. An infinite ratio is null."""
    rows = []
    for result in results:
        ratio = result.ratio
        finite = ratio is not None and not math.isinf(ratio.most)
        rows.append(
            {
                "table": result.table,
                "transport": result.transport,
                "referenceTransport": result.reference_transport,
                "workload": result.workload,
                "row": asdict(result.row),
                "reference": result.reference,
                "candidate": result.candidate,
                "ratio": ratio._asdict() if ratio and finite else None,
                "must": str(result.target) if result.target else None,
                "verdict": str(result.verdict),
                "failures": result.failures,
            }
        )
    path.write_text(json.dumps({"run": asdict(run), "machine": machine(), "rows": rows}, indent=1) + "\n")
