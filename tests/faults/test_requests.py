"""Thousands of requests at once: all are answered, in bounded memory, and nobody else waits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.service import Serve, Service, latencies, latency, percentile, with_address_space
from tests.support.noise import Noise
from tests.support.wire import Client, Json, encode, path_uri

REQUESTS = 10_000
# 64 MiB of unfinished requests and 16 MiB of unsent replies are what a connection may hold.
MOST_GROWTH_MIB = 80
# Long enough for a loaded machine, far from the seconds that a blow-up takes.
MOST_WAIT_SECONDS = 0.25
# Others have their turn every 5 ms.
MOST_WAIT_OF_REQUESTS_SECONDS = 0.1

Call = tuple[str, Json]


def pipeline(client: Client, calls: list[Call]) -> Callable[[], list[int]]:
    """Send everything in a thread, because the server may stop reading; the function waits for its end."""
    ids: list[int] = []
    sender = threading.Thread(target=lambda: ids.extend(client.pipeline(*calls)), daemon=True)
    sender.start()

    def finish() -> list[int]:
        sender.join(30)
        assert not sender.is_alive(), "the server takes no more requests"
        return ids

    return finish


def test_thirty_two_waiting_reads_hold_nothing_up(transport: str, serve: Serve, noise: Noise) -> None:
    service = serve(transport)
    client = service.connect()
    cat, quiet = client.start("/bin/cat", pipeStdin=True), client.start("/bin/sleep", "600")
    for _ in range(32):
        client.request("process/read", {"processId": quiet.id, "afterSeq": 0, "waitMs": 30_000})
    writes = [latency(service, partial(cat.write, "x", f"w{number}")) for number in range(500)]
    left = iter(range(500))
    look = ("fs/getMetadata", {"path": "file:///tmp"})
    lookups = latencies(service, client, [look], lambda: next(left, None) is not None, 0)
    assert percentile(writes, 0.99) < 0.02 + noise.allowance
    assert percentile(lookups, 0.99) < 0.02 + noise.allowance


def _mixes(folder: Path) -> dict[str, Callable[[int], Call]]:
    (folder / "file").write_bytes(b"content")
    return {
        "status": lambda _: ("environment/status", None),
        "lookups": lambda _: ("fs/getMetadata", {"path": "file:///tmp"}),
        "files": lambda _: ("fs/readFile", {"path": path_uri(folder / "file")}),
        "unknown methods": lambda _: ("no/such/method", {}),
        "writes to many files": lambda n: (
            "fs/writeFile",
            {"path": path_uri(folder / f"f{n % 500}"), "dataBase64": ""},
        ),
        "writes to one file": lambda _: (
            "fs/writeFile",
            {"path": path_uri(folder / "one"), "dataBase64": "YQ=="},
        ),
    }


@pytest.mark.parametrize(
    "mix", ["status", "lookups", "files", "unknown methods", "writes to many files", "writes to one file"]
)
def test_requests_without_a_window_are_all_answered(
    transport: str, mix: str, serve: Serve, folder: Path
) -> None:
    service = serve(transport, may_fail=mix == "writes to one file")
    client = service.connect()
    before = service.reset_peak()
    call = _mixes(folder)[mix]
    client.pause()
    sent = pipeline(client, [call(number) for number in range(REQUESTS)])
    time.sleep(0.2)  # as if the client read only after everything was sent
    client.resume()
    for number in sent():
        client.reply(number, timeout=8)
    assert service.peak - before <= MOST_GROWTH_MIB


@pytest.mark.over("unix", "ws")
@pytest.mark.parametrize("waiting", [False, True])
def test_requests_that_come_all_at_once_and_may_wait_for_each_other_delay_no_others(
    transport: str, serve: Serve, noise: Noise, waiting: bool
) -> None:
    service = serve(transport, may_fail=True)
    client, other = service.connect(), service.connect()
    sleeper = client.start("/bin/sleep", "600", pipeStdin=True)
    # Above 64 MiB an answer waits. Less makes only the buffers large that requests are read into.
    for number in range(65 if waiting else 17):
        sleeper.write(bytes(1 << 20), f"fill{number}")
    before = service.reset_peak()
    # Fewer wait than stop the reading: the terminate has to get through.
    writes = [
        ("process/write", {"processId": sleeper.id, "chunk": encode("x"), "writeId": str(number)})
        for number in range(900 if waiting else REQUESTS)
    ]
    sent = pipeline(client, writes)
    until = time.monotonic() + 2
    taken = latencies(service, other, [("environment/status", None)], lambda: time.monotonic() < until, 0.005)
    growth = service.peak - before
    assert max(taken) < MOST_WAIT_OF_REQUESTS_SECONDS + noise.allowance
    assert growth <= MOST_GROWTH_MIB
    assert sleeper.terminate() == {"running": True}
    for request in sent():
        client.reply(request)


def test_a_cancelled_start_does_not_take_the_requests_behind_it_along(serve: Serve, folder: Path) -> None:
    """The start waits for the write, the terminate cancels it, the read waits for the write too."""
    client = serve("unix").connect()
    uri = path_uri(folder / "file")
    write, start, terminate, read = client.pipeline(
        ("fs/writeFile", {"path": uri, "dataBase64": encode(bytes(3 << 20))}),
        ("process/start", client.start_params(["/bin/true"], processId="p")),
        ("process/terminate", {"processId": "p"}),
        ("fs/readFile", {"path": uri}),
    )
    assert client.result(write) == {}
    client.failure(start)
    assert client.result(terminate) == {"running": True}
    assert client.result(read)


def test_a_cancelled_start_of_a_taken_id_leaves_its_process_usable(transport: str, serve: Serve) -> None:
    """Eight starts at once: the later ones wait for their turn, the ninth for the eighth."""
    client = serve(transport).connect()
    starts = [
        ("process/start", client.start_params(["/bin/echo", "hi"], processId=f"p{n}")) for n in range(8)
    ]
    *_, terminate, read = client.pipeline(
        *starts, starts[7], ("process/terminate", {"processId": "p7"}), ("process/read", {"processId": "p7"})
    )
    client.result(terminate)
    client.reply(read)


def test_a_path_with_thousands_of_parts_delays_no_other_request(serve: Serve, noise: Noise) -> None:
    """No such path exists: the kernel takes 4096 bytes. 80 KB of request must not become 2 GB of memory."""
    service = serve("unix", may_fail=True, launcher=with_address_space(3000))
    client, other = service.connect(), service.connect()
    before = service.reset_peak()
    deep = client.request("fs/writeFile", {"path": "file:///" + "a/" * 40_000, "dataBase64": ""})
    until = time.monotonic() + 1
    taken = latencies(service, other, [("environment/status", None)], lambda: time.monotonic() < until, 0.005)
    assert max(taken) < MOST_WAIT_SECONDS + noise.allowance
    assert client.failure(deep).code == -32603
    assert service.peak - before <= MOST_GROWTH_MIB


def test_many_paths_of_the_longest_kind_stay_within_memory(serve: Serve, noise: Noise) -> None:
    """500 requests of 4 KB with 2,000 folders each, all unfinished at the same time."""
    service = serve("unix", may_fail=True, launcher=with_address_space(6000))
    client, other = service.connect(), service.connect()
    before = service.reset_peak()
    tail = "a/" * 2000
    sent = pipeline(
        client,
        [("fs/writeFile", {"path": f"file:///{number}/{tail}", "dataBase64": ""}) for number in range(500)],
    )
    until = time.monotonic() + 1
    taken = latencies(service, other, [("environment/status", None)], lambda: time.monotonic() < until, 0.005)
    for number in sent():
        assert client.failure(number, timeout=10).code in (-32004, -32603)
    assert service.peak - before <= MOST_GROWTH_MIB
    assert max(taken) < MOST_WAIT_SECONDS + noise.allowance


@pytest.mark.over("unix", "ws")
def test_thousands_of_waiting_reads_are_answered_within_memory(
    transport: str, serve: Serve, noise: Noise
) -> None:
    """One chunk of 64 KiB is the answer to all of them: 170 MiB for a client that does not read."""
    service = serve(transport)
    client, other = service.connect(), service.connect()
    script = "read line; dd if=/dev/zero bs=65536 count=1 2>/dev/null; sleep 600"
    process = client.shell(script, pipeStdin=True)
    read = {"processId": process.id, "afterSeq": 0, "waitMs": 60_000}
    reads = client.pipeline(*[("process/read", read)] * 2000)
    client.call("environment/status")
    before = service.reset_peak()
    client.pause()
    client.request("process/write", {"processId": process.id, "chunk": encode("\n"), "writeId": "1"})
    until = time.monotonic() + 1.5
    taken = latencies(service, other, [("environment/status", None)], lambda: time.monotonic() < until, 0.005)
    growth = service.peak - before
    client.resume()
    for number in reads:
        assert client.result(number)["chunks"]
    assert growth <= MOST_GROWTH_MIB
    assert max(taken) < MOST_WAIT_SECONDS + noise.allowance


def _mixed(client: Client, service: Service, folder: Path) -> list[Call]:
    cat, chance = client.start("/bin/cat", pipeStdin=True), random.Random(20)
    (folder / "file").write_bytes(b"content")
    makers: list[Callable[[int], Call]] = [
        lambda _: ("environment/status", None),
        lambda _: ("environment/info", {}),
        lambda _: ("fs/getMetadata", {"path": "file:///tmp"}),
        lambda _: ("fs/getMetadata", {"path": "no uri"}),
        lambda _: ("fs/readFile", {"path": path_uri(folder / "file")}),
        lambda n: ("fs/writeFile", {"path": path_uri(folder / f"w{n % 40}"), "dataBase64": "YQ=="}),
        lambda _: ("no/such/method", None),
        lambda n: ("process/write", {"processId": cat.id, "chunk": "eA==", "writeId": str(n)}),
        lambda _: ("process/read", {"processId": cat.id, "maxBytes": 10}),
        lambda _: ("process/terminate", {"processId": "nobody"}),
    ]
    return [chance.choice(makers)(number) for number in range(REQUESTS)]


@pytest.mark.parametrize("concurrent", [1, 4])
def test_a_limit_on_concurrent_requests_holds_for_ten_thousand(
    transport: str, concurrent: int, serve: Serve, folder: Path
) -> None:
    service = serve(transport, "--concurrent-requests", str(concurrent))
    client = service.connect()
    calls = _mixed(client, service, folder)
    earlier = len(client.reply_order())
    client.pause()
    sent = pipeline(client, calls)
    time.sleep(0.2)
    client.resume()
    ids = sent()
    client.wait_until(lambda: len(client.reply_order()) == earlier + REQUESTS, 40, "all replies")
    order = client.reply_order()[earlier:]
    if concurrent == 1:
        assert order == ids
    assert sorted(map(int, order)) == ids
