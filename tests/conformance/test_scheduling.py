"""Scheduling: what waits for what, and what never does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.limits.groups import needs_groups
from tests.sandbox.profiles import READ_ONLY, context, glob, restricted, special
from tests.support.wire import Client, Json, ReplyError, at_most, decode, encode, path_uri

STATUS: tuple[str, Json] = ("environment/status", None)
ROUNDS = 20
"""Disorder shows only sometimes; so the racy requests are sent several times over."""


def uri(path: Path) -> dict[str, Json]:
    return {"path": path_uri(path)}


def writing(path: Path, content: str) -> tuple[str, Json]:
    return "fs/writeFile", {**uri(path), "dataBase64": encode(content)}


@pytest.mark.everywhere
@pytest.mark.statement("S1", "S3", "S4")
def test_long_poll_delays_nothing(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    polls = [client.request("process/read", {"processId": process.id, "waitMs": 60_000}) for _ in range(20)]
    with at_most(5):
        client.call("environment/status")
        assert client.call("fs/getMetadata", {"path": "file:///"})["isDirectory"]
        assert process.read()["chunks"] == []
        other = client.shell("echo meanwhile").wait_closed()
        assert other.output == b"meanwhile\n"
    assert not any(client.answered(number) for number in polls)
    assert process.write("news", "1") == "accepted"
    for number in polls:
        assert decode(client.result(number)["chunks"][0]["chunk"]) == b"news"


@pytest.mark.everywhere
@pytest.mark.statement("S4")
def test_what_is_sent_together_with_a_long_poll_is_answered_at_once(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    poll: tuple[str, Json] = ("process/read", {"processId": process.id, "waitMs": 60_000})
    polls, others = [], []
    for _ in range(6):  # what comes again goes another way
        numbers = client.pipeline(poll, STATUS, ("fs/getMetadata", {"path": "file:///"}), poll, STATUS)
        with at_most(5):
            assert client.result(numbers[2])["isDirectory"]
            for number in (numbers[1], numbers[4]):
                assert client.result(number)["status"] == "ready"
        others += [numbers[1], numbers[2], numbers[4]]
        polls += [numbers[0], numbers[3]]
    assert not any(client.answered(number) for number in polls)
    assert process.write("news", "1") == "accepted"
    for number in polls:
        assert decode(client.result(number)["chunks"][0]["chunk"]) == b"news"
    ids = [message["id"] for message in client.received if "id" in message]
    assert [ids.count(number) for number in (*polls, *others)] == [1] * 30


@pytest.mark.everywhere
@pytest.mark.statement("S4")
def test_terminate_and_signal_pass_a_long_poll(client: Client) -> None:
    process = client.shell("trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done")
    process.wait_output(b"ready\n")
    after = process.log.seqs[-1]
    poll = client.request("process/read", {"processId": process.id, "afterSeq": after, "waitMs": 60_000})
    with at_most(5):
        process.interrupt()
        assert decode(client.result(poll)["chunks"][0]["chunk"]) == b"caught\n"
    poll = client.request("process/read", {"processId": process.id, "afterSeq": after + 1, "waitMs": 60_000})
    with at_most(5):
        assert process.terminate() == {"running": True}
        assert client.result(poll)["exitCode"] == 137


@pytest.mark.statement("S4")
def test_answers_at_admission_pass_a_long_poll(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    poll = client.request("process/read", {"processId": process.id, "waitMs": 60_000})
    with at_most(5):
        client.send_raw(b"{")
        assert client.failure(-1).code == -32600
        assert client.refused("no/such").code == -32601
        assert client.refused("process/read", {}).code == -32602
    assert not client.answered(poll)


@pytest.mark.everywhere
@pytest.mark.statement("S5", "S11")
def test_requests_behind_a_start_find_the_process(client: Client) -> None:
    for attempt in range(ROUNDS):
        name = f"race{attempt}"
        params = client.start_params(["/bin/cat"], processId=name, pipeStdin=True)
        write = {"processId": name, "chunk": encode("x"), "writeId": "1"}
        _, read, written, again, poll = client.pipeline(
            ("process/start", params),
            ("process/read", {"processId": name}),
            ("process/write", write),
            ("process/start", params),
            ("process/read", {"processId": name, "waitMs": 20_000}),
        )
        assert client.result(read)["exited"] is False
        assert client.result(written) == {"status": "accepted"}
        assert client.failure(again).message == f"process {name} already exists"
        assert decode(client.result(poll)["chunks"][0]["chunk"]) == b"x"
        client.process(name).terminate()


@pytest.mark.everywhere
@pytest.mark.statement("S11")
def test_no_event_before_the_reply_to_its_start(client: Client) -> None:
    names = [f"quick{number}" for number in range(40)]
    for name in names:
        client.request("process/start", client.start_params(["/bin/echo", name], processId=name))
    for name in names:
        client.process(name).wait_closed()
    seen: set[str] = set()
    for message in client.received:
        if "method" not in message:
            seen.add(message.get("result", {}).get("processId", ""))
        else:
            assert message["params"]["processId"] in seen


@pytest.mark.everywhere
@pytest.mark.statement("S6")
def test_writes_arrive_in_order(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    lines = [f"line {number}\n" for number in range(500)]
    numbers = client.pipeline(
        *(
            ("process/write", {"processId": process.id, "chunk": encode(line), "writeId": str(number)})
            for number, line in enumerate(lines)
        )
    )
    assert [client.result(number)["status"] for number in numbers] == ["accepted"] * 500
    whole = "".join(lines).encode()
    assert process.wait_output(lambda output: len(output) >= len(whole)) == whole


@pytest.mark.everywhere
@pytest.mark.statement("S7")
def test_handle_is_used_in_order(client: Client, here: Path) -> None:
    for attempt in range(ROUNDS):
        path = here / f"opened{attempt}"
        path.write_text("content")
        opened, first, closed, second = client.pipeline(
            ("fs/open", {"handleId": "h", **uri(path)}),
            ("fs/readBlock", {"handleId": "h", "offset": 0, "len": 100}),
            ("fs/close", {"handleId": "h"}),
            ("fs/readBlock", {"handleId": "h", "offset": 0, "len": 100}),
        )
        assert client.result(opened) == {"handleId": "h"}
        assert decode(client.result(first)["chunk"]) == b"content"
        assert client.result(closed) == {}
        assert client.failure(second).message == "unknown file handle `h`"


@pytest.mark.everywhere
@pytest.mark.statement("S7", "S8")
def test_written_blocks_are_there_for_a_later_read(client: Client, here: Path) -> None:
    for attempt in range(ROUNDS):
        path = here / f"f{attempt}"
        numbers = client.pipeline(
            ("fs/open", {"handleId": "w", **uri(path), "mode": "replace"}),
            ("fs/writeBlock", {"handleId": "w", "offset": 0, "chunk": encode("a" * 100_000)}),
            ("fs/writeBlock", {"handleId": "w", "offset": 0, "chunk": encode("bbb")}),
            ("fs/close", {"handleId": "w"}),
            ("fs/readFile", uri(path)),
            ("fs/getMetadata", uri(path)),
        )
        results = [client.result(number) for number in numbers]
        assert decode(results[4]["dataBase64"]) == b"bbb" + b"a" * 99_997
        assert results[5]["size"] == 100_000


@pytest.mark.everywhere
@pytest.mark.statement("S8")
def test_read_of_a_path_waits_for_the_write_before_it(client: Client, here: Path) -> None:
    for attempt in range(ROUNDS):
        path = here / f"written{attempt}"
        numbers = client.pipeline(
            ("fs/getMetadata", uri(path)),
            writing(path, "first"),
            ("fs/getMetadata", uri(path)),
            writing(path, "the second"),
            ("fs/readFile", uri(path)),
            ("fs/remove", uri(path)),
            ("fs/getMetadata", uri(path)),
            writing(path, "x"),
        )
        assert client.failure(numbers[0]).code == -32004
        assert client.result(numbers[2])["size"] == 5
        assert decode(client.result(numbers[4])["dataBase64"]) == b"the second"
        assert client.failure(numbers[6]).code == -32004
        client.result(numbers[7])
        assert path.read_text() == "x"


@pytest.mark.statement("S8")
def test_paths_above_and_below_conflict(client: Client, here: Path) -> None:
    for attempt in range(ROUNDS):
        top = here / f"top{attempt}"
        below = top / "a" / "b"
        options = {"maxDepth": 9, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": False}
        numbers = client.pipeline(
            ("fs/createDirectory", uri(below)),
            writing(below / "file", "content"),
            ("fs/walk", {**uri(top), "options": options}),
            ("fs/readDirectory", uri(below)),
            (
                "fs/copy",
                {
                    "sourcePath": path_uri(top),
                    "destinationPath": path_uri(here / f"copy{attempt}"),
                    "recursive": True,
                },
            ),
            ("fs/readFile", uri(here / f"copy{attempt}" / "a" / "b" / "file")),
            ("fs/remove", uri(top)),
            ("fs/canonicalize", uri(below / "file")),
        )
        assert len(client.result(numbers[2])["entries"]) == 3
        assert len(client.result(numbers[3])["entries"]) == 1
        assert decode(client.result(numbers[5])["dataBase64"]) == b"content"
        assert client.failure(numbers[7]).code == -32004


@pytest.mark.statement("S8")
def test_last_of_many_writes_wins(client: Client, here: Path) -> None:
    path = here / "f"
    numbers = client.pipeline(*(writing(path, f"{number} " * 2000) for number in range(60)))
    for number in numbers:
        client.result(number)
    assert path.read_text() == "59 " * 2000


@pytest.mark.everywhere
@pytest.mark.statement("S9")
def test_start_waits_for_earlier_writes(client: Client, here: Path) -> None:
    for attempt in range(ROUNDS):
        name = f"script{attempt}"
        script = here / name
        _, started = client.pipeline(
            writing(script, f"echo {name}; exit 3\n"),
            ("process/start", client.start_params(["/bin/sh", str(script)], processId=name)),
        )
        client.result(started)
        process = client.process(name).wait_closed()
        assert (process.output, process.exit_code) == (name.encode() + b"\n", 3)


@pytest.mark.statement("S10")
def test_watches_are_set_in_order(client: Client, here: Path) -> None:
    numbers = client.pipeline(
        *(
            ("fs/watchMissing", {"watchId": number, "missing": [path_uri(here / f"m{number}")]})
            for number in range(1, 30)
        )
    )
    assert [client.result(number) for number in numbers] == [{"watching": True}] * 29


@pytest.mark.statement("S17")
@pytest.mark.parametrize("how", ["alone", "in a sandbox", "with a snapshot"])
def test_terminate_behind_a_start(client: Client, here: Path, how: str) -> None:
    members: Json = {}
    if how == "in a sandbox":
        members = {"sandbox": context(READ_ONLY, cwd=here)}
    elif how == "with a snapshot":
        members = {"shellSnapshot": {"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}}}
    command = ["/bin/bash", "-lc", "exec sleep 60"] if how == "with a snapshot" else ["/bin/sleep", "60"]
    for attempt in range(ROUNDS):
        name = f"cancel{attempt}"
        started, ended = client.pipeline(
            ("process/start", client.start_params(command, processId=name, **members)),
            ("process/terminate", {"processId": name}),
        )
        assert client.result(ended) == {"running": True}
        reply = client.reply(started)
        if "result" in reply:
            assert client.process(name).wait_closed().exit_code == 137


@needs_groups
@pytest.mark.statement("S17")
def test_terminate_at_any_moment_of_a_start_with_limits(endpoint: Endpoint) -> None:
    extended = endpoint.connect(extensions=True)
    for half_milliseconds in range(80):
        name = f"p{half_milliseconds}"
        params = extended.start_params(["/bin/sleep", "60"], processId=name, limits={"pids": 9})
        started = extended.request("process/start", params)
        time.sleep(half_milliseconds / 2000)
        assert extended.process(name).terminate() == {"running": True}
        if "result" in extended.reply(started):
            extended.process(name).wait_closed()
        running = [each for each in extended.call("process/list")["processes"] if each["state"] == "running"]
        assert running == []


@pytest.mark.statement("S17")
@pytest.mark.parametrize("slots", [(), ("--concurrent-requests", "1"), ("--concurrent-requests", "2")])
def test_terminate_behind_several_starts_of_a_name(
    endpoint: Endpoint, here: Path, slots: tuple[str, ...]
) -> None:
    client = endpoint.private(*slots).connect(extensions=True)
    members = {"processId": "p", "ifExists": "attach", "sandbox": context(READ_ONLY, cwd=here)}
    start = ("process/start", client.start_params(["/bin/sleep", "60"], **members))
    for _ in range(5):
        numbers = client.pipeline(start, start, start, ("process/terminate", {"processId": "p"}))
        assert client.result(numbers[-1]) == {"running": True}
        replies = [client.reply(number) for number in numbers[:-1]]
        if any("result" in reply for reply in replies):  # one at a time: the starts came before
            client.process("p").wait_closed()
            break
        assert client.call("process/list")["processes"] == []


# -- --concurrent-requests


@pytest.mark.statement("S12")
@pytest.mark.transports("stdio", "unix", "ws")
def test_one_at_a_time_is_strict(endpoint: Endpoint, here: Path) -> None:
    client = endpoint.private("--concurrent-requests", "1").connect()
    process = client.start("/bin/cat", pipeStdin=True)
    before = len(client.reply_order())
    numbers = client.pipeline(
        ("process/read", {"processId": process.id, "waitMs": 400}),
        STATUS,
        ("fs/readFile", uri(here / "missing")),
        ("no/such", None),
        ("process/signal", {"processId": "nobody", "signal": "interrupt"}),
        ("process/terminate", {"processId": process.id}),
        writing(here / "f", "x"),
        ("fs/readFile", uri(here / "f")),
    )
    client.wait_until(lambda: len(client.reply_order()) == before + len(numbers))
    assert client.reply_order()[before:] == numbers
    page = client.result(numbers[0])
    assert page["exited"] is False, "terminate came after the poll"
    assert decode(client.result(numbers[-1])["dataBase64"]) == b"x"


@pytest.mark.statement("S12")
def test_one_at_a_time_holds_the_answer_to_a_malformed_message(endpoint: Endpoint) -> None:
    client = endpoint.private("--concurrent-requests", "1").connect()
    process = client.start("/bin/cat", pipeStdin=True)
    poll = client.request("process/read", {"processId": process.id, "waitMs": 400})
    client.send_raw(b"{")
    assert client.failure(-1).code == -32600
    assert client.reply_order()[-2:] == [poll, -1]


@pytest.mark.statement("S13", "S14")
def test_slots_hold_reads_and_not_control(endpoint: Endpoint) -> None:
    client = endpoint.private("--concurrent-requests", "2").connect()
    process = client.start("/bin/cat", pipeStdin=True)
    polls = [client.request("process/read", {"processId": process.id, "waitMs": 30_000}) for _ in range(2)]
    held = client.request("fs/getMetadata", {"path": "file:///"})
    with at_most(5):
        client.call("environment/status")
        client.call("environment/info")
        assert client.process("nobody").terminate() == {"running": False}
        assert client.process("nobody").interrupt() == {}
        assert client.call("fs/close", {"handleId": "none"}) == {}
        resize = {"processId": process.id, "size": {"rows": 1, "cols": 1}}
        assert client.refused("process/resize", resize).code == -32600
        assert client.refused("no/such").code == -32601
        assert client.refused("initialize", {"clientName": "x"}).code == -32600
    assert not client.answered(held)
    assert process.terminate() == {"running": True}
    for number in polls:
        assert client.result(number)["exited"]
    assert client.result(held)["isDirectory"]


@pytest.mark.statement("S13")
def test_slots_are_taken_in_order_of_arrival(endpoint: Endpoint) -> None:
    client = endpoint.private("--concurrent-requests", "2").connect()
    names = [client.start("/bin/cat", pipeStdin=True).id for _ in range(6)]
    polls = [client.request("process/read", {"processId": name, "waitMs": 300}) for name in names]
    order = []
    for number in polls:
        client.result(number)
    order = [number for number in client.reply_order() if number in polls]
    for pair in range(0, 6, 2):
        assert set(order[pair : pair + 2]) == set(polls[pair : pair + 2])


@pytest.mark.statement("S13", "S5", "S6", "S7", "S8")
@pytest.mark.parametrize("slots", ["2", "8", "100000"])
def test_order_is_kept_with_any_number_of_slots(endpoint: Endpoint, here: Path, slots: str) -> None:
    client = endpoint.private("--concurrent-requests", slots).connect()
    test_requests_behind_a_start_find_the_process(client)
    test_writes_arrive_in_order(client)
    test_handle_is_used_in_order(client, here)
    test_read_of_a_path_waits_for_the_write_before_it(client, here)


@pytest.mark.statement("S1", "S8")
def test_reads_do_not_wait_for_each_other(client: Client, here: Path) -> None:
    os.mkfifo(here / "fifo")
    process = client.shell(f"read -r line < {here}/fifo; echo $line")
    (here / "plain").write_text("x")
    numbers = client.pipeline(*(("fs/readFile", uri(here / "plain")) for _ in range(100)))
    assert all(client.result(number) == {"dataBase64": "eA=="} for number in numbers)
    (here / "fifo").write_text("done\n")
    assert process.wait_closed().output == b"done\n"


# -- what takes long to match


EVIL = "*a" * 4 + "*b"


@pytest.mark.statement("S1")
@pytest.mark.parametrize("case", ["by its text", "on the disk", "slashes", "too large", "environment"])
def test_evil_patterns_of_one_client_hold_no_other_up(
    endpoint: Endpoint, client: Client, here: Path, case: str
) -> None:
    (here / ("a" * 200)).write_text("")
    (here / "plain").write_text("x")
    pattern = f"{here}/{'{a,aa}' * 20 if case == 'too large' else EVIL}"
    sandbox = context(restricted(special("root", "read"), glob(pattern)), cwd=here)
    reading = {**uri(here / ("a" * 200)), "sandbox": sandbox}
    evil: tuple[str, Json] = ("fs/readFile", reading)
    if case == "on the disk":
        evil = ("process/start", client.start_params(["/bin/true"], sandbox=sandbox))
    elif case == "slashes":
        evil = ("fs/readFile", {**reading, "path": f"file:///{path_uri(here / 'plain')[7:]}"})
    elif case == "environment":
        everything = {"inherit": "all", "ignoreDefaultExcludes": True, "set": {}, "includeOnly": []}
        stars = {**everything, "exclude": ["*a" * 100_000]}
        evil = ("process/start", client.start_params(["/bin/true"], envPolicy=stars))
    other = endpoint.connect()
    number = client.request(*evil)
    longest, begin = 0.0, time.monotonic()
    while not client.answered(number) and time.monotonic() - begin < 20:
        asked = time.monotonic()
        other.call("environment/status")
        longest = max(longest, time.monotonic() - asked)
    assert longest < 8  # of 20 and more
    if case in ("too large", "environment"):
        assert client.failure(number).code in (-32600, -32602)
    else:
        client.result(number)


# -- without a window


@pytest.mark.everywhere
@pytest.mark.statement("S15")
def test_ten_thousand_requests_without_a_window(client: Client) -> None:
    numbers = client.pipeline(*([STATUS] * 10_000))
    client.wait_until(lambda: len(client.reply_order()) >= 10_000, 40)
    assert all(client.result(number) == {"status": "ready"} for number in numbers)


@pytest.mark.everywhere
@pytest.mark.statement("S15")
def test_ten_thousand_requests_before_a_reply_is_read(client: Client, here: Path) -> None:
    (here / "f").write_text("x")
    client.call("environment/status")
    client.pause()
    try:
        numbers = client.pipeline(*([("fs/getMetadata", uri(here / "f"))] * 10_000))
    finally:
        client.resume()
    assert all(client.result(number, 40)["size"] == 1 for number in numbers)


@pytest.mark.statement("S15")
def test_replies_larger_than_all_buffers_arrive(client: Client, here: Path) -> None:
    (here / "f").write_bytes(b"x" * (4 << 20))
    client.pause()
    try:
        numbers = client.pipeline(*([("fs/readFile", uri(here / "f"))] * 12))
    finally:
        client.resume()
    for number in numbers:
        assert len(client.result(number, 40)["dataBase64"]) > 4 << 20


@pytest.mark.statement("S2")
def test_faults_do_not_end_a_pipeline(client: Client) -> None:
    numbers = client.pipeline(STATUS, ("no/such", None), ("process/read", {}), ("process/read", None), STATUS)
    outcomes: list[Json] = []
    for number in numbers:
        try:
            outcomes.append(client.result(number))
        except ReplyError as error:
            outcomes.append(error.code)
    assert outcomes == [{"status": "ready"}, -32601, -32602, -32602, {"status": "ready"}]
