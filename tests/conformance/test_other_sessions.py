"""What runs, and the processes of other sessions: listing, reaching and following them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_survive import kill_server
from tests.support.noise import noise_watched
from tests.support.wire import PATIENCE, Client, Json, Process, decode, encode, wait_gone

pytestmark = pytest.mark.transports("unix", "unix-ws")

TOKEN = "a token that nobody guesses"


def there(process: Process) -> dict[str, Json]:
    """The members that name a process for other sessions."""
    return {"sessionId": process.client.session_id, "processId": process.id}


def listed(client: Client, **params: Json) -> dict[str, Json]:
    """The entries of a list, by process id."""
    return {entry["processId"]: entry for entry in client.call("process/list", params)["processes"]}


def follow(client: Client, process: Process, **more: Json) -> Process:
    """Subscribe; the process as this connection sees it."""
    client.call("process/subscribe", {**there(process), **more})
    return client.process(process.id)


def size_of(process: Process) -> tuple[int, int]:
    entry = listed(process.client)[process.id]["size"]
    return entry["rows"], entry["cols"]


# -- listing


@pytest.mark.everywhere
@pytest.mark.transports("stdio", "unix", "ws")
@pytest.mark.statement("L1", "L2", "L3")
def test_the_own_processes_are_listed_in_order(client: Client) -> None:
    assert listed(client) == {}
    before = time.time() * 1000
    first = client.shell("echo x; read -r x; exit 5", processId="b", pipeStdin=True)
    first.wait_output(b"x")
    terminal = client.start("/bin/sleep", "300", processId="a", tty=True)
    entries = listed(client)
    assert list(entries) == ["b", "a"]
    one = entries["b"]
    assert (one["state"], one["exitCode"], one["cause"]) == ("running", None, None)
    assert (one["lastSeq"], one["retainedBytes"], one["tty"]) == (1, 2, False)
    assert one["sessionId"] == client.session_id
    assert os.getpgid(one["pid"]) == one["pid"]
    assert before - 50 <= one["startedAtMs"] <= time.time() * 1000
    assert one["ageMs"] < 20_000
    assert one["processCount"] == 1
    assert one["rssBytes"] > 100_000
    assert one["cpuSeconds"] >= 0
    assert (one["argv"], one["cwd"]) == (None, None)
    assert entries["a"]["size"] == {"rows": 24, "cols": 80}
    first.write("x\n", "1")
    first.wait_closed()
    terminal.terminate()
    terminal.wait_closed()
    entries = listed(client)
    ended = entries["b"]
    assert (ended["state"], ended["exitCode"], ended["cause"]) == ("closed", 5, "normal")
    assert (ended["cpuSeconds"], ended["rssBytes"], ended["processCount"]) == (None, None, None)
    assert (entries["a"]["exitCode"], entries["a"]["cause"], "size" in entries["a"]) == (
        137,
        "terminated",
        False,
    )


@pytest.mark.statement("L2", "L3")
def test_descendants_count_wherever_they_went(client: Client) -> None:
    process = client.shell("setsid sleep 300 & sleep 300 & echo up; exec sleep 301")
    process.wait_output(b"up")
    deadline = time.monotonic() + PATIENCE
    while listed(client)[process.id]["processCount"] < 3:
        assert time.monotonic() < deadline
    orphans = client.shell("setsid sleep 300 & exit 0")
    orphans.wait_exited()
    entry = listed(client)[orphans.id]
    assert (entry["state"], entry["processCount"]) == ("exited", 1)
    for each in (process, orphans):
        each.terminate("tree")


@pytest.mark.statement("L3")
def test_processor_time_is_that_of_all_together(client: Client) -> None:
    process = client.shell(
        "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); echo done; read -r x", pipeStdin=True
    )
    process.wait_output(b"done")
    assert listed(client)[process.id]["cpuSeconds"] > 0.02


@pytest.mark.statement("L4")
def test_command_lines_are_told_when_asked_for(client: Client, here: Path) -> None:
    short = client.start("/bin/echo", "a", "b c", cwd=here.as_uri())
    long = client.start("/bin/true", *["x" * 1000] * 8)
    for process in (short, long):
        process.wait_closed()
    assert listed(client)[short.id]["argv"] is None
    entries = listed(client, argv=True)
    assert (entries[short.id]["argv"], entries[short.id]["cwd"]) == (["/bin/echo", "a", "b c"], str(here))
    kept = entries[long.id]["argv"]
    assert kept[:4] == ["/bin/true", *["x" * 1000] * 3]
    assert kept[-1].endswith("x…")
    assert 4000 < sum(map(len, kept)) <= 4096


@pytest.mark.statement("L4")
def test_a_folder_that_is_no_utf8_harms_nothing(client: Client, here: Path) -> None:
    os.mkdir(os.fsencode(here) + b"/\xff")
    process = client.start("/bin/true", cwd=f"{here.as_uri()}/%FF").wait_closed()
    assert process.exit_code == 0
    assert listed(client, argv=True)[process.id]["cwd"] == f"{here}/\ufffd"


@pytest.mark.statement("L4")
def test_command_lines_are_known_after_a_take_over(endpoint: Endpoint) -> None:
    private = endpoint.private()
    owner = private.connect()
    ended = owner.start("/bin/echo", "x", processId="ended").wait_closed()
    began = listed(owner)["ended"]["startedAtMs"]
    owner.start("/bin/sleep", "300", processId="runs")
    kill_server(private)
    entries = listed(private.connect(), sessionId=owner.session_id, argv=True)
    assert entries[ended.id]["argv"] == ["/bin/echo", "x"]
    assert entries[ended.id]["startedAtMs"] == began
    assert entries["runs"]["argv"] == ["/bin/sleep", "300"]
    assert entries["runs"]["processCount"] == 1


@pytest.mark.statement("L1")
def test_all_sessions_or_one_not_both(endpoint: Endpoint) -> None:
    one, other = endpoint.connect(), endpoint.connect()
    for client, name in ((one, "mine"), (other, "theirs")):
        client.start("/bin/true", processId=name).wait_closed()
    assert list(listed(one)) == ["mine"]
    assert list(listed(one, sessionId=other.session_id)) == ["theirs"]
    assert list(listed(one, sessionId=one.session_id)) == ["mine"]
    everything = {(entry["sessionId"], entry["processId"]) for entry in one.call(
        "process/list", {"allSessions": True}
    )["processes"]}  # fmt: skip
    assert {(one.session_id, "mine"), (other.session_id, "theirs")} <= everything
    failure = one.refused("process/list", {"allSessions": True, "sessionId": one.session_id})
    assert failure.code == -32602


# -- reaching


@pytest.mark.statement("L5", "H9")
def test_another_sessions_process_is_reached_by_its_session(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect()
    process = owner.shell(
        "trap 'echo int' INT; while read -r x; do echo got $x; done; echo end; sleep 300",
        processId="p",
        pipeStdin=True,
    )
    mine = other.shell("read -r x; echo mine $x", processId="p", pipeStdin=True)
    assert other.call("process/write", {**there(process), "chunk": encode("one\n"), "writeId": "1"}) == {
        "status": "accepted"
    }
    process.wait_output(b"got one\n")
    page = other.call("process/read", {**there(process), "waitMs": 5000})
    assert decode(page["chunks"][0]["chunk"]) == b"got one\n"
    other.call("process/closeStdin", there(process))
    process.wait_output(b"end\n")
    assert other.call("process/terminate", there(process)) == {"running": True}
    assert process.wait_closed().exit_code == 137
    assert mine.write("x\n", "1") == "accepted"
    assert mine.wait_closed().output == b"mine x\n"


@pytest.mark.statement("L5")
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("process/read", {}),
        ("process/write", {"chunk": "", "writeId": "w"}),
        ("process/closeStdin", {}),
        ("process/resize", {"size": {"rows": 1, "cols": 1}}),
        ("process/signal", {"signal": "interrupt"}),
        ("process/terminate", {}),
        ("process/subscribe", {}),
    ],
)
def test_an_unknown_session_is_named(client: Client, method: str, more: Json) -> None:
    failure = client.refused(method, {"sessionId": "nobody", "processId": "p", **more})
    assert failure.code == -32600
    assert failure.message == "unknown session id nobody (`sessionId`)"


@pytest.mark.statement("L5", "S5", "S6")
def test_naming_the_own_session_changes_no_order(client: Client) -> None:
    start = client.start_params(["/bin/cat"], processId="p", pipeStdin=True)
    own = {"sessionId": client.session_id, "processId": "p"}
    write = {"chunk": encode("x"), "writeId": "1"}
    numbers = client.pipeline(
        ("process/start", start), ("process/write", {**own, **write}), ("process/read", own)
    )
    assert [client.reply(number).get("error") for number in numbers] == [None, None, None]
    client.process("p").wait_output(b"x")


@pytest.mark.transports("stdio", "ws")
@pytest.mark.statement("L6")
def test_without_proof_other_sessions_are_out_of_reach(endpoint: Endpoint) -> None:
    one = endpoint.connect()
    other = endpoint.connect() if endpoint.transport != "stdio" else one
    own = other.start("/bin/true").wait_closed()
    for session in (other.session_id if other is not one else "x", "nobody"):
        failure = one.refused("process/read", {"processId": own.id, "sessionId": session})
        assert failure.code == -32600
        assert "--ws-auth" in failure.message
        assert "Unix socket" in failure.message
        assert one.refused("process/list", {"sessionId": session}).code == -32600
        assert one.refused("process/subscribe", {"processId": own.id, "sessionId": session}).code == -32600
    assert "allSessions" in one.refused("process/list", {"allSessions": True}).message
    assert other.call("process/read", {"processId": own.id, "sessionId": other.session_id})["closed"]
    assert list(listed(other, sessionId=other.session_id)) == [own.id]


@pytest.mark.transports("ws")
@pytest.mark.statement("L6")
def test_credentials_are_proof(endpoint: Endpoint, here: Path) -> None:
    (here / "token").write_text(TOKEN)
    private = endpoint.private("--ws-auth", "capability-token", "--ws-token-file", str(here / "token"))
    with (
        private.server.connect({"Authorization": f"Bearer {TOKEN}"}) as owner,
        private.server.connect({"Authorization": f"Bearer {TOKEN}"}) as other,
    ):
        process = owner.shell("echo seen").wait_closed()
        assert follow(other, process).wait_closed().output == b"seen\n"
        assert listed(other, allSessions=True)[process.id]["sessionId"] == owner.session_id


@pytest.mark.statement("L7")
def test_write_ids_are_each_sessions_own(endpoint: Endpoint) -> None:
    private = endpoint.private()
    owner, second, third = (private.connect() for _ in range(3))
    process = owner.shell("cat", pipeStdin=True)

    def write(client: Client, text: str, write_id: str = "1") -> None:
        params = {**there(process), "chunk": encode(text), "writeId": write_id}
        assert client.call("process/write", params) == {"status": "accepted"}

    for client, text in ((owner, "a"), (second, "b"), (third, "c")):
        for _ in range(2):
            write(client, text)
    # What one session could call its write must not be what is stored for another's.
    write(owner, "d", f"\0{second.session_id}\0{1}")
    process.wait_output(lambda output: len(output) >= 4)
    assert process.output == b"abcd"
    kill_server(private)
    again = private.connect()
    resumed = private.connect(resume=second.session_id)
    write(resumed, "b")
    write(again, "e")
    assert follow(again, process).wait_output(b"e") == b"abcde"


@pytest.mark.statement("L5", "S17")
def test_a_terminate_for_another_session_cancels_no_start_here(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect()
    process = owner.start("/bin/sleep", "300", processId="p")
    start = other.start_params(["/bin/cat"], processId="p", pipeStdin=True)
    numbers = other.pipeline(("process/start", start), ("process/terminate", there(process)))
    assert "result" in other.reply(numbers[0])
    assert other.reply(numbers[1])["result"] == {"running": True}
    process.wait_closed()
    assert listed(other)["p"]["state"] == "running"


# -- following


@pytest.mark.statement("L8")
def test_two_observers_get_what_the_owner_gets(endpoint: Endpoint) -> None:
    owner, one, two = (endpoint.connect() for _ in range(3))
    script = "for i in $(seq 300); do echo line $i; echo err $i >&2; done; read -r x; exit 7"
    process = owner.shell(script, pipeStdin=True)
    early = follow(one, process)
    process.wait_output(b"line 150\n")
    late = follow(two, process)
    process.write("x\n", "1")
    for each in (process, early, late):
        each.wait_closed()
    assert early.log.events == late.log.events
    session = {"sessionId": owner.session_id}
    assert [(name, {**params, **session}) for name, params in process.log.events] == early.log.events
    assert early.log.seqs == list(range(1, len(early.log.seqs) + 1))
    assert early.log.kinds[-2:] == ["exited", "closed"]
    assert early.exit_code == 7


@pytest.mark.statement("L8")
def test_a_subscription_begins_behind_a_number(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect()
    process = owner.shell("echo one; read -r x; echo two; read -r x", pipeStdin=True)
    process.wait_output(b"one")
    result = other.call("process/subscribe", {**there(process), "afterSeq": 1})
    assert result == {
        "nextSeq": 2,
        "exited": False,
        "exitCode": None,
        "closed": False,
        "tty": False,
        "pid": listed(owner)[process.id]["pid"],
    }
    process.write("x\nx\n", "1")
    seen = other.process(process.id).wait_closed()
    assert (seen.output, seen.log.seqs) == (b"two\n", [2, 3, 4])
    ended = endpoint.connect()
    assert ended.call("process/subscribe", there(process))["closed"] is True
    assert ended.process(process.id).wait_closed().output == b"one\ntwo\n"


@pytest.mark.statement("L8", "X4", "X8")
def test_extension_members_of_events_are_for_those_who_asked(endpoint: Endpoint) -> None:
    owner = endpoint.connect()
    process = owner.shell("exit 1").wait_closed()
    for extensions in (False, True):
        other = endpoint.connect(extensions=extensions)
        ended = follow(other, process).wait_closed().log.events[0][1]
        assert ("cause" in ended) is extensions
        assert ended["sessionId"] == owner.session_id


@pytest.mark.statement("L9", "O45")
def test_a_stalled_observer_delays_no_other_client(endpoint: Endpoint) -> None:
    private = endpoint.private("--retained-output-bytes", "1048576")
    owner, other = private.connect(), private.connect()
    process = owner.shell("read -r x; head -c 64000000 /dev/zero", pipeStdin=True)
    other.pause()
    other.request("process/subscribe", there(process))
    owner.call("environment/status")
    began = time.monotonic()
    with noise_watched() as noise:
        process.write("x\n", "1")
        process.wait_closed()
    assert len(process.output) + process.log.lost_bytes == 64_000_000
    # A reader that is waited for costs two seconds.
    assert time.monotonic() - began < 30
    assert process.log.lost_bytes == 0 or noise.allowance > 2, "the owner has read all the time"
    other.resume()
    seen = other.process(process.id).wait_closed()
    assert len(seen.output) + seen.log.lost_bytes == 64_000_000
    assert seen.log.lost_bytes > 0
    assert seen.log.seqs == sorted(set(seen.log.seqs))


@pytest.mark.statement("L10")
def test_a_second_subscription_moves_the_cursor(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect()
    process = owner.shell("echo one; read -r x; echo two", pipeStdin=True)
    process.wait_output(b"one")
    seen = follow(other, process)
    seen.wait_output(b"one")
    follow(other, process, afterSeq=0)
    process.write("x\n", "1")
    seen.wait_closed()
    assert seen.log.seqs == [1, 1, 2, 3, 4]


@pytest.mark.statement("L10")
def test_after_unsubscribe_nothing_comes(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect()
    process = owner.shell("echo one; read -r x; echo two", pipeStdin=True)
    seen = follow(other, process)
    seen.wait_output(b"one")
    for _ in range(2):
        assert other.call("process/unsubscribe", there(process)) == {}
    assert other.call("process/unsubscribe", {"sessionId": "nobody", "processId": "p"}) == {}
    process.write("x\n", "1")
    process.wait_closed()
    other.call("environment/status")
    assert seen.output == b"one\n"
    assert seen.log.kinds == ["output"]


@pytest.mark.statement("L11")
def test_a_subscription_does_not_keep_a_session(endpoint: Endpoint) -> None:
    private = endpoint.private("--session-ttl", "1")
    owner, other = private.connect(), private.connect(extensions=True)
    process = owner.start("/bin/sleep", "300")
    pid = listed(owner)[process.id]["pid"]
    seen = follow(other, process)
    owner.close()
    seen.wait_closed()
    assert [name for name, _ in seen.log.events] == ["process/exited", "process/closed"]
    assert seen.log.events[0][1]["cause"] == "sessionExpired"
    assert wait_gone(pid)
    assert other.refused("process/list", {"sessionId": process.client.session_id}).code == -32600


@pytest.mark.statement("L11")
def test_reads_of_a_session_that_ends_are_answered_with_the_end(endpoint: Endpoint) -> None:
    private = endpoint.private("--session-ttl", "1")
    owner, other = private.connect(), private.connect()
    # More than become known in one turn of the loop.
    processes = [owner.start("/bin/sleep", "300") for _ in range(200)]
    reads = [other.request("process/read", {**there(each), "waitMs": 60_000}) for each in processes]
    other.call("process/list", {"sessionId": owner.session_id})
    owner.close()
    for number in reads:
        result = other.result(number)
        assert (result["exited"], result["exitCode"], result["nextSeq"] > 1) == (True, 137, True)


@pytest.mark.statement("L8")
def test_at_the_end_of_the_daemon_an_observer_hears_of_every_end(endpoint: Endpoint) -> None:
    private = endpoint.private()
    owner, other = private.connect(), private.connect()
    # More than are looked at before the last connection is closed, if nobody waits for them.
    processes = [owner.start("/bin/sleep", "300") for _ in range(800)]
    seen = [follow(other, process) for process in processes]
    owner.close()
    os.kill(private.server.pid, signal.SIGTERM)
    other.wait_end()
    assert [process.log.kinds for process in seen] == [["exited", "closed"]] * len(seen)


@pytest.mark.statement("L11", "H40")
def test_after_a_take_over_a_subscriber_subscribes_again(endpoint: Endpoint) -> None:
    private = endpoint.private()
    owner, other = private.connect(), private.connect()
    process = owner.shell("echo one; read -r x; echo two", pipeStdin=True)
    last = follow(other, process).wait_output(b"one")
    assert last == b"one\n"
    kill_server(private)
    other.wait_end()
    again = private.connect(resume=other.session_id)
    params = {**there(process), "chunk": encode("x\n"), "writeId": "1"}
    assert again.call("process/write", params) == {"status": "accepted"}
    seen = follow(again, process, afterSeq=1).wait_closed()
    assert (seen.output, seen.log.seqs) == (b"two\n", [2, 3, 4])


@pytest.mark.statement("L12")
def test_what_cannot_be_subscribed_to(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect()
    process = owner.start("/bin/cat", pipeStdin=True)
    assert "own session" in owner.refused("process/subscribe", there(process)).message
    failure = other.refused("process/subscribe", {**there(process), "afterSeq": 1})
    assert (failure.code, "afterSeq" in failure.message) == (-32600, True)
    failure = other.refused("process/subscribe", {**there(process), "processId": "none"})
    assert (failure.code, failure.message) == (-32600, "unknown process id none")
    assert other.refused("process/subscribe", {"processId": "p"}).code == -32602


@pytest.mark.statement("L13")
def test_the_latest_interactive_subscriber_resizes(endpoint: Endpoint) -> None:
    owner, one, two = (endpoint.connect() for _ in range(3))
    process = owner.start("/bin/sleep", "300", tty=True)
    size = {"rows": 30, "cols": 100}

    def resize(client: Client, rows: int) -> Json:
        return client.call("process/resize", {**there(process), "size": {"rows": rows, "cols": 9}})

    follow(one, process)
    assert one.refused("process/resize", {**there(process), "size": size}).code == -32600
    follow(one, process, interactive=True)
    assert resize(one, 31) == {"running": True}
    follow(two, process, interactive=True)
    assert resize(two, 32) == {"running": True}
    failure = one.refused("process/resize", {**there(process), "size": size})
    assert owner.session_id in failure.message
    assert two.session_id in failure.message
    assert resize(owner, 33) == {"running": True}
    assert size_of(process) == (33, 9)
    two.call("process/unsubscribe", there(process))
    assert resize(one, 34) == {"running": True}
    assert size_of(process) == (34, 9)
    process.terminate()
