"""From the values of all rounds to one judged row."""

import math
import statistics
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from benchmarks.targets import AnswersAll, AtLeast, AtMost, Table, Target
from benchmarks.wire import Transport
from benchmarks.workloads import Row


class Verdict(StrEnum):
    """How a row stands to its target."""

    OK = "ok"
    MISS = "MISS"
    NONE = ""


class Spread(NamedTuple):
    """Median, quartiles and range of some values."""

    median: float
    lower: float
    upper: float
    least: float
    most: float


def spread(values: list[float]) -> Spread:
    """Of at least one value; quartiles are interpolated between values (inclusive method)."""
    ordered = sorted(values)
    if len(ordered) == 1 or math.isinf(ordered[-1]):
        # Infinite values cannot be interpolated: take the nearest ones.
        last = len(ordered) - 1
        lower, middle, upper = (ordered[round(last * share)] for share in (0.25, 0.5, 0.75))
    else:
        lower, middle, upper = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(middle, lower, upper, ordered[0], ordered[-1])


@dataclass
class RowResult:
    """One row of one table.

    `reference` and `candidate` map a round to its value; a round that failed is missing, and named in
    `failures` when it was the candidate's.
    `reference_transport` differs from `transport` where the reference has no such transport.
    """

    workload: str
    row: Row
    table: Table
    transport: Transport
    reference_transport: Transport
    target: Target | None
    reference: dict[int, float] = field(default_factory=dict)
    candidate: dict[int, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round in which both were measured, above 1 = candidate better."""
        return [
            self._ratio(self.reference[turn], self.candidate[turn])
            for turn in sorted(self.reference.keys() & self.candidate.keys())
        ]

    def _ratio(self, reference: float, candidate: float) -> float:
        better, worse = (candidate, reference) if self.row.better == "higher" else (reference, candidate)
        if worse:
            return better / worse
        return math.inf if better else 1.0

    @property
    def ratio(self) -> Spread | None:
        """Spread of the paired ratios; None when the two were never measured in the same round."""
        ratios = self.ratios
        return spread(ratios) if ratios else None

    @property
    def verdict(self) -> Verdict:
        """MISS when the upper quartile of the paired ratios is below the target, or the candidate failed."""
        if self.target is None or not (self.candidate or self.failures):
            return Verdict.NONE
        if self.failures:
            return Verdict.MISS
        values = list(self.candidate.values())
        match self.target:
            case AnswersAll():
                met = all(value > 0 for value in values)
            case AtMost(value=limit):
                # The same benefit of the doubt as for ratios: the better quartile counts.
                met = spread(values).lower <= limit
            case AtLeast(ratio=least):
                ratio = self.ratio
                if ratio is None:
                    return Verdict.NONE
                met = ratio.upper >= least
        return Verdict.OK if met else Verdict.MISS
