"""`limits=` of the client, and the options of `execserver run` for them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest

from execclient import InvalidParams, Refused, ResourceLimits
from execclient.commands import values
from execclient.sync import Executor, connect
from execserver.limits.leaf import weights_count
from tests.conftest import StartServer
from tests.limits.groups import MIB, PYTHON, needs_groups

HOG = [*PYTHON.split(), "-c", "x = bytearray(400 << 20)"]


@pytest.fixture
def executor(start_server: StartServer, tmp_path: Path) -> Iterator[Executor]:
    server = start_server(f"unix://{tmp_path}/socket")
    with connect(server.url) as executor:
        yield executor


@needs_groups
def test_a_result_names_the_limit_and_what_was_used(executor: Executor) -> None:
    result = executor.run(HOG, limits=ResourceLimits(memory_bytes=64 * MIB, pids=5))
    assert (result.exit_code, result.cause, result.timed_out) == (137, "limit", False)
    assert result.limit == {"which": "memory", "value": 64 * MIB}
    assert result.usage is not None
    assert result.usage["limitsHit"] == ["memory"]


def test_the_end_at_wall_is_a_time_out(executor: Executor) -> None:
    result = executor.run(["sleep", "60"], limits=ResourceLimits(wall=0.3), grace=5)
    assert (result.exit_code, result.cause, result.timed_out) == (124, "limit", True)
    with executor.start(["sleep", "60"], limits=ResourceLimits(wall=0.3)) as process:
        assert process.wait() == 124
        assert process.limit == {"which": "wall", "value": 300}


@needs_groups
@pytest.mark.skipif(weights_count(), reason="a block device of this machine shares its time by weight")
def test_a_limit_that_cannot_be_enforced_is_refused(executor: Executor) -> None:
    with pytest.raises((Refused, InvalidParams), match="ioWeight"):
        executor.run(["true"], limits=ResourceLimits(io_weight=50))


@pytest.mark.parametrize(
    ("given", "error"),
    [({"memory_bytes": 1}, ValueError), ({"pids": "many"}, TypeError), ({"cpu_percent": True}, TypeError)],
)
def test_a_wrong_limit_is_an_error_of_the_call(given: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(given))):
        ResourceLimits(**given)


def test_sizes_and_shares_are_written_as_for_systemd() -> None:
    assert [values.size(text) for text in ("1048576", "512M", "2g")] == [1 << 20, 512 << 20, 2 << 30]
    assert values.percent("150%") == values.percent("150") == 150
    for text in ("1.5G", "G", "-1"):
        with pytest.raises(ArgumentTypeError):
            values.size(text)
