"""Counting."""

from __future__ import annotations

import pytest

from execprotocol.methods import METHODS
from execserver.telemetry.measures import LATENCY_BUCKETS, UNKNOWN_METHOD, Measures


def test_requests_are_counted_by_method_and_code() -> None:
    measures = Measures()

    measures.request_done("fs/walk", 0.5, 0)
    measures.request_done("fs/walk", 0.25, 0)
    measures.request_done("fs/walk", 0.25, -32004)

    counts = measures.requests["fs/walk"]
    assert counts.codes == {0: 2, -32004: 1}
    assert counts.seconds == 1.0
    assert sum(counts.buckets) == 3
    assert not measures.requests["fs/copy"].codes


@pytest.mark.parametrize("name", ["", "FS/WALK", "no/such", 'x"} 1\nfake 2', UNKNOWN_METHOD])
def test_a_name_that_is_no_method_counts_as_unknown(name: str) -> None:
    measures = Measures()

    measures.request_done(name, 0.1, -32601)

    assert measures.requests[UNKNOWN_METHOD].codes == {-32601: 1}
    assert set(measures.requests) == {*METHODS, UNKNOWN_METHOD}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (LATENCY_BUCKETS[0], 0),
        (LATENCY_BUCKETS[0] * 1.01, 1),
        (LATENCY_BUCKETS[-1], len(LATENCY_BUCKETS) - 1),
        (LATENCY_BUCKETS[-1] * 2, len(LATENCY_BUCKETS)),
    ],
)
def test_a_bound_belongs_to_the_bucket_below_it(seconds: float, bucket: int) -> None:
    measures = Measures()

    measures.request_done("initialize", seconds, 0)

    assert measures.requests["initialize"].buckets[bucket] == 1


def test_exits_are_told_apart() -> None:
    measures = Measures()

    measures.process_exited(0, by_signal=False)
    measures.process_exited(3, by_signal=False)
    measures.process_exited(137, by_signal=False)
    measures.process_exited(137, by_signal=True)

    assert measures.exits == {"success": 1, "failure": 2, "signal": 1}
