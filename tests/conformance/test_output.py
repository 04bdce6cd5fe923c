"""Output: events, reads, retention, and readers that are slow."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from execserver.spool.spool import CHUNK_BYTES, LARGE_CHUNK_BYTES, SpoolLimits
from tests.conformance.endpoint import Endpoint
from tests.support.wire import PATIENCE, Client, Json, Process, at_most, decode, path_uri

MIB = 1 << 20


@pytest.fixture
def stepper(client: Client) -> Stepper:
    """A process that writes one line whenever it is told to."""
    return Stepper(client)


class Stepper:
    """`echo` on demand: every line is a chunk of its own."""

    def __init__(self, client: Client) -> None:
        self.process = client.shell(
            "while read -r line; do echo $line; done; exit 4", tty=False, pipeStdin=True
        )
        self._written = 0

    def line(self, text: str) -> None:
        """Have it write a line, and wait for it."""
        self._written += 1
        self.process.write(text + "\n", f"w{self._written}")
        self.process.wait_output(lambda output: output.count(b"\n") == self._written)

    def end(self) -> Process:
        """Kill it, and wait for its close."""
        self.process.terminate()
        return self.process.wait_closed()


@pytest.mark.everywhere
@pytest.mark.statement("O1", "O2", "O3", "O7")
def test_output_exit_and_close_are_numbered(client: Client) -> None:
    process = client.shell("echo hello; read -r go; exit 3", pipeStdin=True, processId="p")
    process.wait_output(b"hello\n")
    process.write("go\n", "1")
    assert process.wait_closed().log.events == [
        ("process/output", {"processId": "p", "seq": 1, "stream": "stdout", "chunk": "aGVsbG8K"}),
        ("process/exited", {"processId": "p", "seq": 2, "exitCode": 3, "sandboxDenied": False}),
        ("process/closed", {"processId": "p", "seq": 3}),
    ]


@pytest.mark.everywhere
@pytest.mark.statement("O5")
def test_streams_are_told_apart(client: Client) -> None:
    process = client.shell("echo out; echo err >&2; echo out2").wait_closed()
    streams = {name: bytes(data) for name, data in process.log.streams.items()}
    assert streams == {"stdout": b"out\nout2\n", "stderr": b"err\n"}


@pytest.mark.statement("O1", "O3")
def test_numbers_have_no_gap(client: Client) -> None:
    process = client.shell("for i in $(seq 60); do echo o$i; echo e$i >&2; done").wait_closed()
    assert process.log.seqs == list(range(1, len(process.log.seqs) + 1))
    assert process.log.kinds[-1] == "closed"
    assert process.log.kinds.count("exited") == 1
    assert bytes(process.log.streams["stdout"]).split() == [b"o%d" % i for i in range(1, 61)]
    assert bytes(process.log.streams["stderr"]).split() == [b"e%d" % i for i in range(1, 61)]


@pytest.mark.everywhere
@pytest.mark.statement("O5", "B1")
def test_every_byte_comes_through(client: Client) -> None:
    process = client.start("/usr/bin/env", "printf", r"\377\376\000a\r\n\303").wait_closed()
    assert process.output == b"\xff\xfe\0a\r\n\xc3"


@pytest.mark.statement("O5", "O6", "O43")
def test_large_output_is_complete_and_in_order(client: Client) -> None:
    process = client.shell("seq 1 600000").wait_closed(timeout=40)
    assert process.output == b"".join(b"%d\n" % i for i in range(1, 600_001))
    assert process.log.lost_bytes == 0
    chunks = [params["chunk"] for method, params in process.log.events if method == "process/output"]
    assert max(len(decode(chunk)) for chunk in chunks) <= MIB
    assert process.log.seqs == list(range(1, len(process.log.seqs) + 1))


@pytest.mark.statement("O6")
def test_no_chunk_of_a_flood_is_larger_than_128_kib(client: Client) -> None:
    code = "from fcntl import fcntl, F_GETPIPE_SZ as S; print(fcntl(2, S), fcntl(1, S), end=' ')"
    sizes = f'{sys.executable} -c "{code}"'
    process = client.shell(f"{sizes}; head -c 3000000 /dev/zero; {sizes}").wait_closed()
    words = process.output.replace(b"\0" * 3_000_000, b"").split()
    # The pipe that was full is larger from then on, the other one is as it was.
    assert words == [b"65536", b"65536", b"65536", b"262144"]
    chunks = process.read()["chunks"]
    # In the first moments after a message they are of half that size.
    assert CHUNK_BYTES <= max(len(decode(chunk["chunk"])) for chunk in chunks) <= LARGE_CHUNK_BYTES


@pytest.mark.statement("O7")
def test_lone_byte_is_not_held_back(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    for number in range(1, 20):
        process.write("x", str(number))
        with at_most(10):
            process.wait_output(lambda output, wanted=number: len(output) == wanted)  # type: ignore[misc]


@pytest.mark.statement("O3", "O4", "O23")
def test_descendant_that_holds_the_output_delays_the_close(client: Client, here: Path) -> None:
    fifo = here / "fifo"
    script = f"mkfifo {fifo}; (read -r x < {fifo}; echo late) & echo done; exit 5"
    process = client.shell(script).wait_exited()
    state = process.read(process.log.seqs[-1])
    assert (state["exited"], state["exitCode"], state["closed"]) == (True, 5, False)
    assert "closed" not in process.log.kinds
    fifo.write_text("go\n")
    process.wait_closed()
    assert process.output == b"done\nlate\n"
    assert process.log.kinds[-3:] == ["exited", "output", "closed"]


# -- process/read


@pytest.mark.everywhere
@pytest.mark.statement("O20", "O22", "O23")
def test_read_of_a_closed_process(client: Client) -> None:
    process = client.shell("echo hi; exit 4").wait_closed()
    assert process.read() == {
        "chunks": [{"seq": 1, "stream": "stdout", "chunk": "aGkK"}],
        "nextSeq": 4,
        "exited": True,
        "exitCode": 4,
        "closed": True,
        "failure": None,
        "sandboxDenied": False,
    }


@pytest.mark.statement("O20", "O22")
def test_cursor_is_exclusive(stepper: Stepper) -> None:
    for text in "123":
        stepper.line(text)
    process = stepper.end()
    for after, wanted in ((0, [1, 2, 3]), (1, [2, 3]), (3, []), (99, [])):
        page = process.read(after)
        assert [chunk["seq"] for chunk in page["chunks"]] == wanted
        assert page["nextSeq"] == 6


@pytest.mark.statement("O21", "O22", "O23")
def test_max_bytes_gives_whole_chunks_and_at_least_one(stepper: Stepper) -> None:
    for text in "12345":
        stepper.line(text)
    process = stepper.end()
    for limit, wanted, following in (
        (0, [1], 2),
        (1, [1], 2),
        (2, [1], 2),
        (3, [1], 2),
        (4, [1, 2], 3),
        (5, [1, 2], 3),
        (10, [1, 2, 3, 4, 5], 6),
        (100, [1, 2, 3, 4, 5], 6),
    ):
        page = process.read(max_bytes=limit)
        assert [chunk["seq"] for chunk in page["chunks"]] == wanted, limit
        assert page["nextSeq"] == following, limit
        assert (page["exited"], page["closed"], page["exitCode"]) == (True, True, 137)
    page = process.read(5, max_bytes=2)
    assert (page["chunks"], page["nextSeq"]) == ([], 8)


@pytest.mark.statement("O23", "O24")
def test_read_of_a_running_process_does_not_wait_by_default(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    with at_most(10):
        page = process.read()
    assert (page["chunks"], page["nextSeq"], page["exited"], page["exitCode"]) == ([], 1, False, None)


@pytest.mark.everywhere
@pytest.mark.statement("O24")
def test_waiting_read_ends_with_output(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    waiting = client.request("process/read", {"processId": process.id, "waitMs": 30_000})
    process.write("now", "1")
    with at_most(5):
        page = client.result(waiting)
    assert [decode(chunk["chunk"]) for chunk in page["chunks"]] == [b"now"]


@pytest.mark.statement("O24")
def test_waiting_read_ends_with_the_exit(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    waiting = client.request("process/read", {"processId": process.id, "waitMs": 30_000})
    process.terminate()
    with at_most(5):
        page = client.result(waiting)
    assert (page["exited"], page["exitCode"]) == (True, 137)


@pytest.mark.statement("O24")
def test_exit_that_the_cursor_covers_does_not_end_the_wait(client: Client, here: Path) -> None:
    fifo = here / "fifo"
    process = client.shell(f"mkfifo {fifo}; (read -r x < {fifo}) & exit 0").wait_exited()
    assert process.log.seqs == [1]
    with at_most(10):
        assert process.read(0, wait_ms=30_000)["exited"]
    waiting = client.request("process/read", {"processId": process.id, "afterSeq": 1, "waitMs": 30_000})
    client.call("environment/status")
    assert not client.answered(waiting)
    fifo.write_text("go\n")
    with at_most(5):
        page = client.result(waiting)
    assert (page["closed"], page["nextSeq"]) == (True, 3)


@pytest.mark.statement("O24")
def test_closed_process_never_waits(client: Client) -> None:
    process = client.start("/bin/true").wait_closed()
    with at_most(10):
        page = process.read(99, wait_ms=10**15)
    assert (page["chunks"], page["nextSeq"], page["closed"]) == ([], 3, True)


@pytest.mark.statement("O25")
def test_wait_runs_out(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    begin = time.monotonic()
    page = process.read(wait_ms=300)
    assert 0.28 <= time.monotonic() - begin < 5
    assert (page["chunks"], page["nextSeq"], page["exited"]) == ([], 1, False)


@pytest.mark.statement("O26")
def test_unknown_process(client: Client) -> None:
    failure = client.refused("process/read", {"processId": "who", "waitMs": 1000})
    assert (failure.code, failure.message) == (-32600, "unknown process id who")


# -- retention


def counted(to: int) -> bytes:
    """What `seq` writes: a reader that the machine holds up for two seconds does not see it whole."""
    return b"".join(b"%d\n" % number for number in range(1, to + 1))


def read_bytes(page: Json) -> bytes:
    return b"".join(decode(chunk["chunk"]) for chunk in page["chunks"])


def check_gap(page: Json, whole: bytes) -> list[Json]:
    """The chunks that are kept; the page must state what is missing before them."""
    kept = [chunk for chunk in page["chunks"] if chunk["chunk"]]
    assert page["firstSeq"] == kept[0]["seq"]
    got = read_bytes(page)
    assert page["lostBytes"] == len(whole) - len(got)
    assert whole.endswith(got)
    return kept


@pytest.mark.everywhere
@pytest.mark.statement("O40", "O41", "O42", "O43")
def test_newest_mebibyte_is_kept_and_the_gap_is_stated(endpoint: Endpoint) -> None:
    client = endpoint.private("--retained-output-bytes", str(MIB)).connect()
    process = client.start("/usr/bin/env", "seq", "1", "400000").wait_closed(timeout=40)
    page = process.read()
    check_gap(page, counted(400_000))
    assert MIB // 2 < len(read_bytes(page)) <= MIB
    seqs = [chunk["seq"] for chunk in page["chunks"]]
    assert seqs == sorted(set(seqs))
    if page["firstSeq"] <= 10_001:
        # The exit has a number too, and not always one behind all output.
        [exited] = (params["seq"] for method, params in process.log.events if method == "process/exited")
        assert sorted({*seqs, exited}) == list(range(1, max(seqs[-1], exited) + 1))
    assert page["nextSeq"] == process.log.seqs[-1] + 1

    limited = process.read(max_bytes=1)
    assert [chunk["seq"] for chunk in limited["chunks"]] == [page["firstSeq"]]
    assert limited["firstSeq"] == page["firstSeq"]
    assert limited["lostBytes"] == page["lostBytes"]


@pytest.mark.statement("O41")
def test_cursor_that_covers_the_gap_hears_nothing_of_it(endpoint: Endpoint) -> None:
    client = endpoint.private("--retained-output-bytes", str(MIB)).connect()
    process = client.start("/usr/bin/env", "seq", "1", "400000").wait_closed(timeout=40)
    first = process.read()["firstSeq"]
    page = process.read(first - 1)
    assert page["chunks"][0]["seq"] == first
    assert not {"lostBytes", "firstSeq"} & set(page)


@pytest.mark.statement("O40", "O42")
@pytest.mark.transports("unix")
def test_more_than_ten_thousand_lost_numbers_are_not_filled(endpoint: Endpoint) -> None:
    client = endpoint.private("--retained-output-bytes", "100").connect()
    # Strictly one write at a time: each byte is read back before the next is asked for.
    process = client.start("/bin/cat", pipeStdin=True)
    for begin in range(0, 11_000, 1):
        client.transport.send_message(
            b'{"id":"w","method":"process/write","params":{"processId":"%s","chunk":"eA==","writeId":"%d"}}'
            % (process.id.encode(), begin)
        )
        client.wait_until(lambda wanted=begin: len(process.log.output) > wanted)  # type: ignore[misc]
    assert process.log.seqs == list(range(1, 11_001))
    page = process.read()
    assert page["lostBytes"] == 11_000 - len(page["chunks"])
    assert all(chunk["chunk"] for chunk in page["chunks"])
    assert page["firstSeq"] == page["chunks"][0]["seq"] == 11_001 - len(page["chunks"])
    covered = process.read(2_000)
    assert [chunk["seq"] for chunk in covered["chunks"]] == list(range(2_001, 11_001))


@pytest.mark.statement("O40")
def test_kept_bytes_can_be_set(endpoint: Endpoint) -> None:
    client = endpoint.private("--retained-output-bytes", "4000000").connect()
    process = client.start("/usr/bin/env", "seq", "1", "400000").wait_closed(timeout=40)
    page = process.read()
    assert "lostBytes" not in page
    assert read_bytes(page) == process.output


@pytest.mark.statement("O40", "O46")
def test_budget_of_the_daemon_takes_from_who_holds_most(endpoint: Endpoint) -> None:
    client = endpoint.private("--spool-max-bytes", "600000").connect()
    modest = client.start("/usr/bin/env", "seq", "1", "10000").wait_closed()
    greedy = [client.start("/usr/bin/env", "seq", "1", "150000").wait_closed() for _ in range(2)]
    assert read_bytes(modest.read()) == modest.output
    kept = [read_bytes(process.read()) for process in greedy]
    # The bound is one of the disk: the beginning of each was small, and is in memory.
    beginnings = 3 * (SpoolLimits().small + CHUNK_BYTES)
    assert sum(map(len, kept)) + len(modest.output) <= 600_000 + beginnings
    for process, part in zip(greedy, kept, strict=True):
        check_gap(process.read(), counted(150_000))
        assert part


@pytest.mark.statement("O27")
def test_page_without_a_limit_is_at_most_eight_mebibytes(endpoint: Endpoint) -> None:
    client = endpoint.private("--retained-output-bytes", "40000000").connect()
    process = client.start("/usr/bin/env", "seq", "1", "2500000").wait_closed(timeout=50)
    whole, got, cursor, pages = process.output, b"", 0, 0
    while True:
        page = process.read(cursor)
        data = read_bytes(page)
        got += data
        pages += 1
        assert len(data) <= 8 * MIB
        if page["closed"]:
            break
        assert not page["exited"]
        assert page["nextSeq"] == page["chunks"][-1]["seq"] + 1
        cursor = page["nextSeq"] - 1
    assert pages > 1
    assert got == whole


@pytest.mark.statement("O27", "O28", "H26")
def test_rest_of_a_cut_page_is_notified_after_a_resume(endpoint: Endpoint) -> None:
    private = endpoint.private("--retained-output-bytes", "40000000")
    first = private.connect()
    script = "seq 1 2500000; read -r go"
    process = first.shell(script, pipeStdin=True)
    process.wait_output(lambda output: output.endswith(b"\n2500000\n"), timeout=50)
    whole = process.output
    first.close()

    second = private.connect(handshake=False)
    params = {"clientName": "tests", "resumeSessionId": first.session_id}
    # Together, for what is behind the page is held back for 250 ms only.
    second.send_all(
        second.message("initialize", params, id="resume"),
        second.message("initialized"),
        second.message("process/read", {"processId": process.id}, id="read"),
    )
    second.result("resume")
    page, resumed = second.result("read"), second.process(process.id)
    begin = read_bytes(page)
    assert len(begin) <= 8 * MIB < len(whole)
    second.wait_until(lambda: len(begin) + len(resumed.log.output) >= len(whole), 40)
    assert begin + resumed.output == whole
    numbers = [chunk["seq"] for chunk in page["chunks"]] + resumed.log.seqs
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.statement("O27")
def test_cut_page_tells_of_an_exit_that_it_covers(endpoint: Endpoint, here: Path) -> None:
    client = endpoint.private("--retained-output-bytes", "40000000").connect()
    os.mkfifo(here / "go")
    # The leader goes; what it leaves behind writes more than a page into its output.
    process = client.shell(f"{{ read -r go <{here}/go; seq 1 2500000; }} & echo begun; exit 3").wait_exited()
    (here / "go").write_text("go\n")
    process.wait_closed(timeout=50)

    page = process.read()
    assert len(read_bytes(page)) <= 8 * MIB < len(process.output)
    missing = set(range(1, page["nextSeq"])) - {chunk["seq"] for chunk in page["chunks"]}
    # Nobody else could tell whoever resumes with this page what that number was.
    assert missing == {2}
    assert (page["exited"], page["exitCode"], page["closed"]) == (True, 3, False)


# -- readers that are slow


def wait_for_file(path: Path) -> None:
    """Wait, beside the connection, for a file that a child makes."""
    deadline = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < deadline, "the child was held back"
        threading.Event().wait(0.02)


@pytest.mark.everywhere
@pytest.mark.statement("O44", "O45", "O1")
def test_reader_that_stalls_holds_nothing_back_and_hears_of_the_gap(endpoint: Endpoint, here: Path) -> None:
    client = endpoint.private("--retained-output-bytes", str(MIB)).connect()
    script = f"seq 1 5000000; echo over > {here}/done; read -r go"
    params = client.start_params(["/bin/sh", "-c", script], processId="flood", pipeStdin=True)
    total = sum(len(f"{i}\n") for i in range(1, 5_000_001))
    client.pause()
    try:
        started = client.request("process/start", params)
        wait_for_file(here / "done")
    finally:
        client.resume()
    client.result(started)
    process = client.process("flood")
    process.wait_output(lambda output: output.endswith(b"\n5000000\n"), timeout=40)
    process.terminate()
    process.wait_closed()

    outputs = [params for method, params in process.log.events if method == "process/output"]
    stated = [params for params in outputs if "lostBytes" in params]
    assert stated, "a gap must have been stated"
    assert len(process.output) + process.log.lost_bytes == total
    for first_behind in stated:
        assert first_behind["chunk"]
        assert first_behind["firstSeq"] == first_behind["seq"]
    seqs = process.log.seqs
    assert seqs == sorted(set(seqs))
    fillers = sum(not params["chunk"] for params in outputs)
    assert fillers <= 10_000 * len(stated)
    if fillers:
        assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.statement("O43")
def test_reader_that_drains_loses_nothing_of_a_flood(client: Client) -> None:
    size = 48 * MIB
    process = client.shell(f"head -c {size} /dev/zero").wait_closed(timeout=50)
    assert len(process.output) == size
    assert process.log.lost_bytes == 0
    assert process.log.seqs == list(range(1, len(process.log.seqs) + 1))


@pytest.mark.statement("O44", "S16")
def test_stalled_reader_does_not_slow_another_connection(endpoint: Endpoint, here: Path) -> None:
    slow, quick = endpoint.connect(), endpoint.connect()
    slow.pause()
    try:
        params = slow.start_params(["/bin/sh", "-c", "head -c 30000000 /dev/zero"], cwd=path_uri(here))
        slow.request("process/start", params)
        process = quick.shell("seq 1 100000").wait_closed()
        assert process.output.endswith(b"\n100000\n")
        with at_most(PATIENCE):
            for _ in range(100):
                quick.call("environment/status")
    finally:
        slow.resume()
