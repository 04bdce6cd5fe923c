"""Standard input: what is accepted, once, in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.wire import Client, Process, at_most, encode


def cat(client: Client) -> Process:
    return client.start("/bin/cat", pipeStdin=True)


def refusal(process: Process, data: str, write_id: str) -> tuple[int, str]:
    params = {"processId": process.id, "chunk": encode(data), "writeId": write_id}
    failure = process.client.refused("process/write", params)
    return failure.code, failure.message


@pytest.mark.everywhere
@pytest.mark.statement("W1")
def test_bytes_reach_the_child(client: Client) -> None:
    process = cat(client)
    result = client.call(
        "process/write", {"processId": process.id, "chunk": encode(b"\0\xff\n"), "writeId": "1"}
    )
    assert result == {"status": "accepted"}
    process.wait_output(b"\0\xff\n")


@pytest.mark.statement("W1")
def test_empty_chunk_is_accepted(client: Client) -> None:
    process = cat(client)
    assert process.write("", "1") == "accepted"
    assert process.write("x", "2") == "accepted"
    process.wait_output(b"x")


@pytest.mark.statement("W1", "S6")
def test_large_input_comes_back_whole(client: Client) -> None:
    process = cat(client)
    blocks = [bytes([65 + i]) * 700_000 for i in range(8)]
    client.pipeline(
        *(
            ("process/write", {"processId": process.id, "chunk": encode(block), "writeId": str(i)})
            for i, block in enumerate(blocks)
        )
    )
    whole = b"".join(blocks)
    assert process.wait_output(lambda output: len(output) >= len(whole), timeout=40) == whole


@pytest.mark.everywhere
@pytest.mark.statement("W2")
def test_same_write_id_is_written_once(client: Client) -> None:
    process = cat(client)
    for data, write_id in (("a", "1"), ("a", "1"), ("different", "1"), ("b", "2"), ("a", "1")):
        assert process.write(data, write_id) == "accepted"
    assert process.wait_output(b"b") == b"ab"


@pytest.mark.statement("W2")
def test_write_ids_belong_to_their_process(client: Client) -> None:
    one, other = cat(client), cat(client)
    one.write("one", "1")
    other.write("other", "1")
    one.wait_output(b"one")
    other.wait_output(b"other")


@pytest.mark.statement("W3")
@pytest.mark.transports("unix")
def test_4096_write_ids_are_remembered(client: Client) -> None:
    process = cat(client)
    for begin in range(0, 4097, 512):
        count = min(512, 4097 - begin)
        sent = client.pipeline(
            *(
                ("process/write", {"processId": process.id, "chunk": encode("."), "writeId": str(begin + i)})
                for i in range(count)
            )
        )
        assert all(client.result(number) == {"status": "accepted"} for number in sent)
    process.wait_output(lambda output: len(output) == 4097)
    assert process.write("remembered", "1") == "accepted"
    assert process.write("forgotten", "0") == "accepted"
    assert process.wait_output(b"forgotten")[4097:] == b"forgotten"


@pytest.mark.statement("W4")
def test_write_id_must_not_be_empty(client: Client) -> None:
    assert refusal(cat(client), "x", "") == (-32602, "writeId must not be empty")


@pytest.mark.everywhere
@pytest.mark.statement("W5", "W6")
def test_status_of_what_cannot_be_written(client: Client) -> None:
    assert client.process("nobody").write("x", "1") == "unknownProcess"
    process = client.shell("trap '' INT; while :; do sleep 0.05; done")
    assert process.write("x", "1") == "stdinClosed"
    process.terminate()
    process.wait_closed()
    assert process.write("x", "1") == "stdinClosed"


@pytest.mark.statement("W7", "W2")
def test_input_of_a_piped_process_that_ended(client: Client) -> None:
    process = cat(client)
    process.write("x", "1")
    process.wait_output(b"x")
    process.terminate()
    process.wait_closed()
    assert refusal(process, "y", "2") == (-32603, "failed to write to process stdin")
    assert process.write("x", "1") == "accepted"
    assert process.output == b"x"


@pytest.mark.statement("W1")
def test_child_that_closed_its_input_still_accepts(client: Client) -> None:
    process = client.shell("exec <&-; echo closed; exec sleep 30", pipeStdin=True)
    process.wait_output(b"closed")
    for number in range(5):
        assert process.write("x" * 100_000, str(number)) == "accepted"
    assert not process.read()["exited"]


@pytest.mark.statement("W8", "S4")
def test_child_that_does_not_read_holds_up_nothing(client: Client) -> None:
    process = client.start("/bin/sleep", "60", pipeStdin=True)
    with at_most(10):
        numbers = client.pipeline(
            *(
                (
                    "process/write",
                    {"processId": process.id, "chunk": encode("x" * 500_000), "writeId": str(i)},
                )
                for i in range(8)
            )
        )
        assert [client.result(number, 5)["status"] for number in numbers] == ["accepted"] * 8
        assert process.terminate() == {"running": True}
    process.wait_closed()


def close(process: Process) -> str:
    status: str = process.client.call("process/closeStdin", {"processId": process.id})["status"]
    return status


@pytest.mark.everywhere
@pytest.mark.statement("W9")
def test_child_reads_end_of_file_behind_what_was_accepted(client: Client) -> None:
    process = cat(client)
    process.write("first", "1")
    assert close(process) == "accepted"
    assert process.wait_closed().exit_code == 0
    assert process.output == b"first"
    assert close(process) == "accepted"


@pytest.mark.statement("W9", "W10", "S6")
def test_end_comes_behind_writes_that_a_child_has_still_to_read(client: Client, here: Path) -> None:
    go = here / "go"
    os.mkfifo(go)
    process = client.shell(f"read -r x < {go}; exec cat", pipeStdin=True)
    block, count = b"x" * 500_000, 6
    writes = [
        ("process/write", {"processId": process.id, "chunk": encode(block), "writeId": str(number)})
        for number in range(count)
    ]
    sent = client.pipeline(*writes, ("process/closeStdin", {"processId": process.id}))
    assert [client.result(number)["status"] for number in sent] == ["accepted"] * (count + 1)
    assert close(process) == "accepted"
    assert process.write("late", "late") == "stdinClosed"
    assert not process.read()["exited"]
    go.write_text("go\n")
    assert process.wait_closed(40).exit_code == 0
    assert process.output == block * count


@pytest.mark.everywhere
@pytest.mark.statement("W10", "W2")
def test_nothing_is_accepted_behind_the_end(client: Client) -> None:
    process = client.shell("cat >/dev/null; echo end; exec sleep 300", pipeStdin=True)
    process.write("x", "1")
    close(process)
    process.wait_output(b"end")
    assert process.write("y", "2") == "stdinClosed"
    assert process.write("x", "1") == "accepted"
    process.terminate()


@pytest.mark.statement("W9")
def test_end_of_a_child_that_closed_its_input(client: Client) -> None:
    process = client.shell("exec <&-; echo closed; exec sleep 30", pipeStdin=True)
    process.wait_output(b"closed")
    process.write("x" * 1_000_000, "1")
    assert close(process) == "accepted"
    assert process.write("x", "2") == "stdinClosed"
    assert process.terminate() == {"running": True}
    process.wait_closed()


@pytest.mark.everywhere
@pytest.mark.statement("W11")
def test_input_that_is_not_there_cannot_be_closed(client: Client) -> None:
    assert close(client.process("nobody")) == "unknownProcess"
    process = client.start("/bin/sleep", "300")
    assert close(process) == "stdinClosed"
    process.terminate()
    process.wait_closed()
    assert close(process) == "stdinClosed"


@pytest.mark.everywhere
@pytest.mark.statement("W12")
def test_input_of_a_terminal_stays_open(client: Client) -> None:
    process = client.start("/bin/cat", tty=True, pipeStdin=True)
    failure = client.refused("process/closeStdin", {"processId": process.id})
    assert failure.code == -32600
    assert "0x04" in failure.message
    process.write("\x04", "1")
    assert process.wait_closed().exit_code == 0
