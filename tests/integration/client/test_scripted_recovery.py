"""A lost connection, with a scripted peer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from execclient import (
    CallTimeout,
    Chunk,
    NoSuchProcess,
    OutcomeUnknown,
    OutputGap,
    ProtocolFault,
    RequestTooLarge,
    SessionLost,
    connect,
)
from tests.integration.client.conftest import ScriptedDaemon, closed, connect_to, exited, output, page


async def test_a_resume_names_the_session_and_asks_for_what_came_after_the_last_event(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send(output(1, b"a"), output(2, b"b"))
        assert [await anext(process), await anext(process)] == [Chunk("stdout", b"a"), Chunk("stdout", b"b")]
        await peer.close()

        peer = await scripted.accept()
        initialize = await peer.handshake()
        read = await peer.answer("process/read", page((3, b"c"), next_seq=4))
        peer.send(output(4, b"d"), exited(5, 7), closed(6))

        assert initialize["params"]["resumeSessionId"] == "s1"
        assert read["params"] == {
            "processId": "p1",
            "afterSeq": 2,
            "maxBytes": None,
            "waitMs": 0,
        }
        assert [data async for _, data in process] == [b"c", b"d"]
        assert await process.wait() == 7


async def test_events_that_overtake_the_answer_to_that_read_wait_for_it(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        await peer.close()
        peer = await scripted.session()
        read = await peer.expect("process/read")
        peer.send(output(3, b"c"), output(4, b"d"))
        peer.send({"id": read["id"], "result": page((1, b"a"), (2, b"b"), (3, b"c"), next_seq=4)}, closed(5))

        assert [data async for _, data in process] == [b"a", b"b", b"c", b"d"]


async def test_events_that_come_in_another_order_lose_nothing(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send(output(1, b"a"), closed(4))
        read = await peer.expect("process/read")
        assert read["params"]["afterSeq"] == 1
        result = page((2, b"b"), next_seq=5, exited=True, exitCode=7, closed=True)
        peer.send(exited(3, 7), {"id": read["id"], "result": result}, output(2, b"b"))

        assert [data async for _, data in process] == [b"a", b"b"]
        assert await process.wait() == 7


async def test_an_event_that_never_came_is_asked_for(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send(output(1, b"a"), output(3, b"c"))
        await peer.answer("process/read", page((2, b"b"), (3, b"c"), next_seq=4))
        peer.send(output(4, b"d"), exited(5), closed(6))
        assert [data async for _, data in process] == [b"a", b"b", b"c", b"d"]


async def test_an_event_that_was_dropped_is_a_gap(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send(output(3, b"c"))
        await peer.refuse("process/read", -32600, "unknown process id p1")
        with pytest.raises(OutputGap) as raised:
            await anext(process)
        assert raised.value.lost_bytes is None
        assert await anext(process) == Chunk("stdout", b"c")
        peer.send(output(4, b"d"))
        assert await anext(process) == Chunk("stdout", b"d")


async def test_a_connection_that_is_cut_while_that_is_asked_for_loses_nothing(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send(output(1, b"a"), output(3, b"c"))
        await peer.expect("process/read")
        await peer.close()

        peer = await scripted.session()
        read = await peer.answer("process/read", page((2, b"b"), (3, b"c"), next_seq=4))
        assert read["params"]["afterSeq"] == 1
        peer.send(output(4, b"d"), exited(5), closed(6))
        assert [data async for _, data in process] == [b"a", b"b", b"c", b"d"]


async def test_an_event_that_overtakes_another_while_others_are_still_recovered_is_waited_for(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (executor, process, peer):
        starting = asyncio.create_task(executor.start(["y"], id="p2", stdin=True))
        await peer.answer("process/start", {"processId": "p2"})
        await starting
        await peer.close()

        peer = await scripted.session()
        reads = [await peer.expect("process/read") for _ in range(2)]
        first, other = sorted(reads, key=lambda read: str(read["params"]["processId"]))
        peer.send({"id": first["id"], "result": page((1, b"a"), next_seq=2)})
        peer.send(output(2, b"b"))
        assert [await anext(process), await anext(process)] == [Chunk("stdout", b"a"), Chunk("stdout", b"b")]
        peer.send(exited(4, 7), closed(5), output(3, b"c"))
        await asyncio.sleep(0.05)
        peer.send({"id": other["id"], "result": page(next_seq=1)})
        again = await peer.answer(
            "process/read", page((3, b"c"), next_seq=4, exited=True, exitCode=7, closed=False)
        )
        assert again["params"]["afterSeq"] == 2
        assert [data async for _, data in process] == [b"c"]
        assert await process.wait() == 7


async def test_what_is_overtaken_by_what_comes_with_the_answer_is_asked_for_too(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send(output(1, b"a"), output(3, b"c"))
        read = await peer.expect("process/read")
        answer = {"id": read["id"], "result": page((2, b"b"), (3, b"c"), next_seq=4)}
        peer.send(answer, output(5, b"e"))
        read = await peer.answer("process/read", page((4, b"d"), (5, b"e"), next_seq=6))
        assert read["params"]["afterSeq"] == 3
        peer.send(output(4, b"d"), exited(6), closed(7))
        assert [data async for _, data in process] == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_page_that_may_have_been_cut_is_read_on(scripted: ScriptedDaemon) -> None:
    megabytes = [(seq, b"x" * (1 << 20)) for seq in range(1, 9)]
    async with scripted.client() as (_, process, peer):
        await peer.close()
        peer = await scripted.session()
        await peer.answer("process/read", page(*megabytes, next_seq=9))
        read = await peer.answer(
            "process/read", page((9, b"end"), next_seq=12, exited=True, exitCode=0, closed=True)
        )

        assert read["params"]["afterSeq"] == 8
        assert len(b"".join([data async for _, data in process])) == (8 << 20) + 3


async def test_a_connection_that_is_cut_again_while_it_recovers_is_replaced_again(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (executor, process, peer):
        await peer.close()
        for _ in range(3):
            peer = await scripted.accept()
            await peer.expect("initialize")
            await peer.close()
        for _ in range(3):
            peer = await scripted.session()
            await peer.expect("process/read")
            await peer.close()
        peer = await scripted.session()
        await peer.answer("process/read", page((1, b"a"), next_seq=2))
        peer.send(closed(2))

        assert [data async for _, data in process] == [b"a"]
        assert executor.recoveries == 4


async def test_connections_that_are_cut_as_soon_as_they_are_back_are_made_ever_more_slowly(
    scripted: ScriptedDaemon,
) -> None:
    clock = asyncio.get_running_loop().time
    async with scripted.client() as (executor, process, peer):
        begin = clock()
        for _ in range(8):
            await peer.close()
            peer = await scripted.session()
            await peer.answer("process/read", page(next_seq=1))
        assert clock() - begin >= 0.3  # 5 ms, doubled up to 100
        peer.send(exited(1), closed(2))
        assert await process.wait() == 0
        assert executor.recoveries == 8


async def test_a_session_that_is_still_attached_is_asked_for_again(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (executor, process, peer):
        await peer.close()
        for _ in range(3):
            peer = await scripted.accept()
            await peer.refuse("initialize", -32010, "session s1 is already attached to another connection")
        peer = await scripted.session()
        await peer.answer("process/read", page(next_seq=1))
        peer.send(exited(1), closed(2))

        assert await process.wait() == 0
        assert executor.recoveries == 1


async def test_a_session_that_stays_attached_is_lost_in_the_end(scripted: ScriptedDaemon) -> None:
    async with scripted.client(recovery_timeout=0.3) as (_, process, peer):
        await peer.close()

        async def refuse() -> None:
            while True:
                peer = await scripted.accept()
                await peer.refuse("initialize", -32010, "attached")

        refusing = asyncio.create_task(refuse())
        with pytest.raises(SessionLost, match=r"not be resumed within 0\.3 s: .*attached"):
            await process.wait()
        refusing.cancel()


async def test_an_unknown_session_is_lost_at_once(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (executor, process, peer):
        waiting = asyncio.create_task(process.wait())
        await peer.close()
        await (await scripted.accept()).refuse("initialize", -32600, "unknown session id s1")

        with pytest.raises(SessionLost, match="unknown session id s1"):
            await waiting
        with pytest.raises(SessionLost):
            await anext(process)
        with pytest.raises(SessionLost):
            await executor.run(["true"])


async def test_a_process_that_the_daemon_has_forgotten_fails_alone(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (executor, process, peer):
        await peer.close()
        peer = await scripted.session()
        await peer.refuse("process/read", -32600, "unknown process id p1")

        with pytest.raises(NoSuchProcess):
            await process.wait()
        stat = asyncio.create_task(executor.fs.iterdir("/"))
        await peer.answer("fs/readDirectory", {"entries": []})
        assert await stat == []


async def test_a_write_whose_answer_was_lost_is_sent_again_with_its_id(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        writing = asyncio.create_task(process.write(b"x"))
        first = await peer.expect("process/write")
        await peer.close()
        peer = await scripted.session()
        await peer.answer("process/read", page(next_seq=1))
        second = await peer.answer("process/write", {"status": "accepted"})

        await writing
        assert first["params"] == second["params"]
        assert first["params"]["writeId"]


async def test_a_start_whose_answer_was_lost_is_not_sent_again_but_terminated(
    scripted: ScriptedDaemon,
) -> None:
    async with connect_to(scripted) as (executor, peer):
        starting = asyncio.create_task(executor.start(["x"]))
        start = await peer.expect("process/start")
        await peer.close()
        with pytest.raises(OutcomeUnknown, match="process/start"):
            await starting

        peer = await scripted.session()
        terminate = await peer.answer("process/terminate", {"running": True})
        assert terminate["params"]["processId"] == start["params"]["processId"]


async def test_calls_that_are_made_while_it_recovers_wait(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (executor, _, peer):
        executor.drop_connection()
        starting = asyncio.create_task(executor.start(["y"], id="p2"))
        peer = await scripted.session()
        await peer.answer("process/read", page(next_seq=1))
        await peer.answer("process/start", {"processId": "p2"})
        peer.send(output(1, b"y", "p2"), closed(2, "p2"))

        assert [data async for _, data in await starting] == [b"y"]


async def test_output_that_is_lost_for_good_is_a_gap_and_the_rest_follows(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        await peer.close()
        peer = await scripted.session()
        lost = page((1, b""), (2, b""), (3, b"c"), next_seq=4, lostBytes=12, firstSeq=3)
        await peer.answer("process/read", lost)
        peer.send(closed(4))

        with pytest.raises(OutputGap) as raised:
            await anext(process)
        assert raised.value.lost_bytes == 12
        assert [data async for _, data in process] == [b"c"]


async def test_a_run_with_a_gap_raises_it_with_the_result(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        running = asyncio.create_task(executor.run(["x"]))
        name = (await peer.answer("process/start", {}))["params"]["processId"]
        peer.send(output(1, b"tail", name, lostBytes=5, firstSeq=1), exited(2, 3, name), closed(3, name))

        with pytest.raises(OutputGap) as raised:
            await running
        assert raised.value.result is not None
        assert (raised.value.result.exit_code, raised.value.result.stdout) == (3, b"tail")


async def test_a_run_whose_last_output_was_cut_off_waits_for_it(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        running = asyncio.create_task(executor.run(["x"]))
        name = (await peer.answer("process/start", {}))["params"]["processId"]
        peer.send(exited(1, 0, name))
        await peer.close()
        peer = await scripted.session()
        read = await peer.expect("process/read")
        # Longer than a run waits for output after the exit.
        done, _ = await asyncio.wait({running}, timeout=0.8)
        assert not done
        last = page((2, b"last"), next_seq=4, exited=True, exitCode=0, closed=True)
        peer.send({"id": read["id"], "result": last})

        assert (await running).stdout == b"last"


async def test_a_call_without_an_answer_ends_in_time_and_harms_nothing(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted, call_timeout=0.2) as (executor, peer):
        with pytest.raises(CallTimeout, match=r"fs/getMetadata: no response within 0\.2 s"):
            await executor.fs.stat("/")
        late = await peer.expect("fs/getMetadata")
        peer.send({"id": late["id"], "result": {}})

        listing = asyncio.create_task(executor.fs.iterdir("/"))
        await peer.answer("fs/readDirectory", {"entries": []})
        assert await listing == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"not JSON\n",
        b"[]\n",
        b"1\n",
        b"\xff\n",
        b"{}\n",
        b'{"method":"process/output","params":{"processId":"p1"}}\n',
        b'{"method":"process/output","params":7}\n',
        b'{"method":"process/output","params":{"processId":"p1","seq":1,"stream":"stdout","chunk":"*"}}\n',
    ],
)
async def test_what_is_not_of_the_protocol_ends_the_session_with_an_error_that_shows_it(
    scripted: ScriptedDaemon, garbage: bytes
) -> None:
    async with scripted.client() as (executor, process, peer):
        listing = asyncio.create_task(executor.fs.iterdir("/"))
        await peer.expect("fs/readDirectory")
        peer.send_bytes(garbage)

        with pytest.raises(ProtocolFault, match="not of the protocol"):
            await listing
        with pytest.raises(SessionLost, match="not of the protocol"):
            await process.wait()


async def test_a_server_that_cannot_read_us_is_a_fault_too(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        listing = asyncio.create_task(executor.fs.iterdir("/"))
        await peer.expect("fs/readDirectory")
        peer.send({"id": -1, "error": {"code": -32600, "message": "trailing characters"}})

        with pytest.raises(ProtocolFault, match="trailing characters"):
            await listing


async def test_unknown_notifications_and_members_are_ignored(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        peer.send({"method": "news/today", "params": [1]}, {"method": "fs/missingChanged"})
        peer.send(output(1, b"a", later="more"), closed(2))

        assert [data async for _, data in process] == [b"a"]


async def test_messages_are_put_together_from_any_pieces(scripted: ScriptedDaemon) -> None:
    async with scripted.client() as (_, process, peer):
        for message in (output(1, "ü\n".encode()), closed(2)):
            for byte in json.dumps(message).encode() + b"\n":
                peer.send_bytes(bytes([byte]))
                await asyncio.sleep(0)

        assert [data async for _, data in process] == ["ü\n".encode()]


async def test_a_request_that_fits_no_message_is_not_sent(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, _):
        with pytest.raises(RequestTooLarge):
            await executor.start(["x", "y" * (64 << 20)])


async def test_an_answer_after_a_resume_that_is_not_of_the_protocol_ends_the_session(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (_, process, peer):
        await peer.close()
        peer = await scripted.session()
        await peer.answer("process/read", {"chunks": "nonsense"})

        with pytest.raises(SessionLost, match="not of the protocol"):
            await process.wait(timeout=10)


async def test_a_handshake_that_is_not_of_the_protocol_is_a_fault_and_leaves_no_connection(
    scripted: ScriptedDaemon,
) -> None:
    connecting = asyncio.create_task(connect(scripted.url).__aenter__())
    peer = await scripted.accept()
    await peer.answer("initialize", {"session": "s1"})

    with pytest.raises(ProtocolFault):
        await connecting
    await peer.expect("initialized")
    async with asyncio.timeout(10):
        assert await peer.receive() == {}


async def test_a_file_whose_opening_was_cut_off_is_opened_again(
    scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    metadata = {"size": 1, "modifiedAtMs": 1, "createdAtMs": 1}
    async with connect_to(scripted) as (executor, peer):
        download = asyncio.create_task(executor.fs.download("/file", tmp_path / "file", verify=False))
        first = await peer.expect("fs/open")
        await peer.close()
        peer = await scripted.session()
        second = await peer.answer("fs/open", {})
        await peer.answer("fs/getMetadata", metadata)
        await peer.answer("fs/readBlock", {"chunk": "eA==", "eof": True})
        await peer.answer("fs/close", {})
        await download

    assert (tmp_path / "file").read_bytes() == b"x"
    assert first["params"]["handleId"] != second["params"]["handleId"]


async def test_copying_may_take_longer_than_a_call(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted, call_timeout=0.2) as (executor, peer):
        copying = asyncio.create_task(executor.fs.copy("/large", "/copy"))
        request = await peer.expect("fs/copy")
        await asyncio.sleep(0.5)
        peer.send({"id": request["id"], "result": {}})
        await copying


@pytest.mark.parametrize("name", ["../../x", "/x", "..", ".", "", "x\0", None, 5])
async def test_a_name_that_leads_out_of_its_directory_is_a_fault(scripted: ScriptedDaemon, name: Any) -> None:
    async with connect_to(scripted) as (executor, peer):
        listing = asyncio.create_task(executor.fs.iterdir("/folder"))
        entry = {"fileName": name, "isDirectory": False, "isFile": True}
        await peer.answer("fs/readDirectory", {"entries": [entry]})

        with pytest.raises(ProtocolFault, match="directory"):
            await listing


async def test_connections_that_are_lost_again_before_they_bring_anything_are_given_up_in_time(
    scripted: ScriptedDaemon,
) -> None:
    async def cut_each() -> None:
        while True:
            peer = await scripted.session()
            await peer.expect("process/read")
            await peer.close()

    async with scripted.client(recovery_timeout=0.5) as (_, process, peer):
        cutting = asyncio.create_task(cut_each())
        await peer.close()

        with pytest.raises(SessionLost, match="brought any events"):
            await process.wait(timeout=10)
        cutting.cancel()
        await asyncio.wait({cutting})

    assert len(scripted.peers) < 30
