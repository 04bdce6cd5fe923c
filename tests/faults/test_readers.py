"""Clients that read slowly, late, or not at all, while commands write as fast as they can."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.service import MIB, Fifo, Serve, gaps, latencies, lost, percentile
from tests.support.noise import Noise
from tests.support.wire import ProcessLog, path_uri

MakeFifo = Callable[[], Fifo]

FLOOD = 500_000_000
KEPT_MIB = 1
MOST_GROWTH_MIB = 8
SMALL_REQUESTS = (("environment/status", None), ("fs/getMetadata", {"path": "file:///tmp"}))


def assert_ended(log: ProcessLog) -> None:
    """`exited` and `closed` came, once each, `closed` last; output may come between the two."""
    assert [kind for kind in log.kinds if kind != "output"] == ["exited", "closed"]
    assert log.kinds[-1] == "closed"


@pytest.mark.over("unix", "ws")
def test_a_client_that_stops_reading_costs_only_itself(
    transport: str, serve: Serve, fifo: MakeFifo, noise: Noise
) -> None:
    service = serve(transport)
    other, client, news = service.connect(), service.connect(), fifo()
    before = service.reset_peak()
    client.pause()
    finite = client.start_params(
        ["/bin/sh", "-c", f"yes | head -c {FLOOD}; echo >{news.path}"], processId="finite"
    )
    endless = client.start_params(["/usr/bin/yes"], processId="endless")
    client.pipeline(("process/start", finite), ("process/start", endless))
    until = time.monotonic() + 3
    taken = latencies(service, other, SMALL_REQUESTS, lambda: time.monotonic() < until, pause=0.002)
    news.line(within=15)  # nobody has read a byte of it, and it is done
    assert service.peak - before <= 2 * KEPT_MIB + MOST_GROWTH_MIB
    assert percentile(taken, 0.99) < 0.05 + noise.allowance

    client.resume()
    client.request("process/terminate", {"processId": "endless"})
    for name, code in (("finite", 0), ("endless", 137)):
        log = client.process(name).wait_closed().log
        assert_ended(log)
        assert log.exit_code == code
        assert gaps(log) == []
    log = client.log("finite")
    assert len(log.output) + lost(log) == FLOOD


def test_what_a_late_reader_missed_is_counted_to_the_byte(
    transport: str, serve: Serve, fifo: MakeFifo
) -> None:
    service, news = serve(transport, "--retained-output-bytes", str(MIB)), fifo()
    client, size = service.connect(), 60_000_000
    client.pause()
    script = f"head -c {size} /dev/zero; echo >{news.path}"
    client.request("process/start", client.start_params(["/bin/sh", "-c", script], processId="p"))
    news.line()
    client.resume()
    log = client.process("p").wait_closed().log
    # Few enough numbers that each one lost is notified with an empty chunk.
    assert log.seqs == list(range(1, len(log.seqs) + 1))
    assert len(log.output) + lost(log) == size
    assert lost(log) > 0
    assert_ended(log)


@pytest.mark.over("unix", "ws")
@pytest.mark.parametrize(("rate", "count"), [(2_000_000, 1_000_000), (7_000_000, 1_500_000)])
def test_a_slow_but_steady_reader_loses_nothing(transport: str, rate: int, count: int, serve: Serve) -> None:
    """TCP tells a sender of room in large steps: a steady reader seems to stand still for a while."""
    client = serve(transport).connect(rate=rate)
    process = client.start("/usr/bin/seq", "1", str(count)).wait_closed(30)
    assert lost(process.log) == 0
    assert process.output == b"".join(b"%d\n" % number for number in range(1, count + 1))


def test_many_commands_at_once_take_turns_at_a_steady_reader_and_lose_nothing(serve: Serve) -> None:
    """The window of 256 KiB is emptied in 30 ms, again and again; only the turn of each comes late."""
    client = serve("unix", "--retained-output-bytes", "262144").connect(rate=8_000_000)
    count, size = 32, 600_000
    started = [client.start("/usr/bin/head", "-c", str(size), "/dev/zero") for _ in range(count)]
    logs = [process.wait_closed(40).log for process in started]
    assert sum(len(log.output) + lost(log) for log in logs) == count * size
    assert [lost(log) for log in logs] == [0] * count


def test_output_is_not_lost_while_a_large_reply_is_on_its_way(
    transport: str, serve: Serve, folder: Path
) -> None:
    """The client reads all the time, at full speed."""
    service = serve(transport)
    client, large = service.connect(), folder / "large"
    with large.open("wb") as file:
        file.truncate(47 * MIB if transport == "ws" else 120 * MIB)
    reply = client.request("fs/readFile", {"path": path_uri(large)})
    process = client.start("/usr/bin/seq", "1", "1000000").wait_closed(40)
    client.result(reply)
    assert len(process.output) + lost(process.log) == 6_888_896
    assert lost(process.log) == 0


@pytest.mark.parametrize("retained", [0, 1000, 20_000])
def test_a_reader_that_keeps_up_loses_nothing_however_little_is_retained(retained: int, serve: Serve) -> None:
    client = serve("unix", "--retained-output-bytes", str(retained)).connect()
    process = client.start("/usr/bin/seq", "1", "100000").wait_closed()
    assert (len(process.output), lost(process.log)) == (588_895, 0)


def test_sequences_arrive_to_the_byte_again_and_again(transport: str, serve: Serve) -> None:
    client = serve(transport).connect()
    expected = b"".join(b"%d\n" % number for number in range(1, 2_000_001))
    for _ in range(3):
        process = client.start("/usr/bin/seq", "1", "2000000").wait_closed(30)
        assert gaps(process.log) == []
        assert process.output == expected
        assert_ended(process.log)


def test_three_million_random_bytes_arrive_complete(transport: str, serve: Serve, folder: Path) -> None:
    client, file = serve(transport).connect(), folder / "random"
    process = client.shell(f"head -c 3000000 /dev/urandom | tee {file}").wait_closed(30)
    assert hashlib.sha256(process.output).digest() == hashlib.sha256(file.read_bytes()).digest()
    assert len(process.output) == 3_000_000


def test_the_last_words_of_a_terminal_reach_a_reader_that_was_behind(serve: Serve, folder: Path) -> None:
    """The window is full when the commands write and end; the reader goes on a moment later."""
    service = serve("unix")
    client, large = service.connect(), folder / "large"
    large.write_bytes(bytes(2 * MIB))
    client.pause()
    client.request("fs/readFile", {"path": path_uri(large)})
    names = [f"t{number}" for number in range(8)]
    script = "stty raw; head -c 1000 /dev/zero; sleep 0.01; head -c 3000 /dev/zero"
    started = client.pipeline(
        *(
            ("process/start", client.start_params(["/bin/sh", "-c", script], tty=True, processId=name))
            for name in names
        )
    )
    time.sleep(1)  # no event tells that they ended: that is what is being tested
    client.resume()
    for number in started:
        client.result(number)
    logs = [client.process(name).wait_closed().log for name in names]
    assert [len(log.output) + lost(log) for log in logs] == [4000] * len(names)


def test_output_in_single_bytes_costs_no_more_than_its_bookkeeping(serve: Serve) -> None:
    service = serve("unix")
    client = service.connect()
    before = service.reset_peak()
    script = "import os\nfor _ in range(2000000): os.write(1, b'x')"
    process = client.start("/usr/bin/env", "python3", "-c", script).wait_closed(50)
    assert len(process.output) == 2_000_000
    assert service.peak - before <= KEPT_MIB + MOST_GROWTH_MIB
