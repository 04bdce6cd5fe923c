"""What a row must reach: the *must* column of the performance targets, and nothing else.

Source: the project's pages AGENT_DAY and, for the other rows, PERFORMANCE, section 4, column "must". Reads in
a sandbox have none: the reference does not confine them. `docs/benchmarks.md` says how a row is read.
Ratios are to the reference in the same run, above 1 = this server is better. A Unix socket exists only here:
its rows stand beside the reference's WebSocket rows and share their targets. What the client library reaches
is a share of what the load generator does at the same server. The reference of searches is ripgrep,
and that of forwarded ports is `ssh -L`.
"""

from dataclasses import dataclass
from typing import Literal

from benchmarks.wire import Transport

Table = Transport | Literal["library", "programs"]
"""Where a row stands: under its transport, among those of the client library, or beside other programs."""


@dataclass(frozen=True)
class AtLeast:
    """The paired ratio may not fall below this."""

    ratio: float

    def __str__(self) -> str:
        return f"≥{self.ratio:.3g}x"


@dataclass(frozen=True)
class AtMost:
    """The candidate's own value may not exceed this, whatever the reference does."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"≤{self.value:g} {self.unit}"


@dataclass(frozen=True)
class AnswersAll:
    """Every request is answered; how fast is not bound."""

    def __str__(self) -> str:
        return "answers all"


Target = AtLeast | AtMost | AnswersAll

# Row → (stdio, WebSocket and Unix socket); None: no target there.
_RATIOS: dict[str, tuple[float | None, float | None]] = {
    "distinct_metadata": (6, 3.5),
    "distinct_read": (2, 1.5),
    "flood": (5, None),
    "metadata_p50": (2, 1.2),
    "metadata_p99": (1.2, 1.2),
    "read_p50": (2, 1.2),
    "list_p50": (2, 1.2),
    "canonicalize_p50": (2, 1.2),
    "write_p50": (1.5, 1.2),
    "walk": (1.5, 1.5),
    "eight_read": (None, 1.3),
    "spawn_p50": (3.4, 36),
    "spawn_64": (6, 6),
    "spawn_pty_p50": (1.8, 1.8),
    "output_dd": (8, 2.2),
    "output_yes": (8, 2.2),
    "output_head": (8, 2.2),
    "output_cpu": (10, None),
    "loaded_p50": (100, 8),
    "behind_long_poll": (1000, 1000),
    "behind_long_poll_64": (2, 2),
    "write_pipe": (1.2, 250),
    "write_pty": (1.2, 250),
    "read_file_small": (1.7, 1.2),
    "read_file_large": (5, 4),
    "write_file_small": (1.5, 1.0),
    "write_file_large": (4, 2),
    "retained_read": (1.5, 2.5),
    "confined_p50": (4, 4),
    "confined_write": (20, 20),
    "processes_start": (5, 5),
    "processes_rss": (1.7, 1.7),
    "connections_rate": (None, 3),
    "connections_rss": (None, 1.3),
    "idle_rss": (0.8, 0.8),
}
# Output that is also kept on disk costs one more copy.
_WITH_SPOOL = {
    "output_dd": (6, 1.8),
    "output_yes": (6, 1.8),
    "output_head": (6, 1.8),
}
_OF_LIBRARY = 0.6
# No more than 1.3 times the time of ripgrep, in one request.
_OF_RIPGREP = 1 / 1.3
_OF_PROGRAMS: dict[str, Target] = {
    "search": AtLeast(_OF_RIPGREP),
    "glob": AtLeast(_OF_RIPGREP),
    "first_event": AtMost(150, "ms"),
    "forward_down": AtLeast(0.5),
    "forward_up": AtLeast(0.5),
}
_LIMITS = {
    # Beyond what the server keeps by contract.
    "slow_reader": AtMost(4, "MiB"),
    # What a sandbox may cost a command.
    "confined_extra": AtMost(6, "ms"),
}


def target(row: str, table: Table, *, with_spool: bool = False) -> Target | None:
    """The target of a row in a table, or None when it is only reported."""
    if table == "library":
        return AtLeast(_OF_LIBRARY)
    if table == "programs":
        return _OF_PROGRAMS.get(row)
    if row == "flood" and table != "stdio":
        return AnswersAll()
    if row == "first_closed":
        # Where the interpreter's own start takes 12 ms.
        return AtMost(130, "ms") if table == "stdio" else None
    if row in _LIMITS:
        return _LIMITS[row]
    ratios = _RATIOS | _WITH_SPOOL if with_spool else _RATIOS
    ratio = ratios.get(row, (None, None))[0 if table == "stdio" else 1]
    return None if ratio is None else AtLeast(ratio)
