"""How long a session is kept without a connection, and what is known of its processes after its end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_other_sessions import TOKEN
from tests.conformance.test_sessions import resume
from tests.conformance.test_survive import kill_server, without_server
from tests.faults.service import eventually
from tests.support.wire import PATIENCE, Client, Json, alive, wait_gone

pytestmark = pytest.mark.transports("unix")

DAY_MS = 24 * 3600 * 1000


def pid_of(client: Client, process_id: str) -> int:
    """The process id of a process of the client's session."""
    listed = client.call("process/list", {})["processes"]
    return next(int(entry["pid"]) for entry in listed if entry["processId"] == process_id)


def forgotten(client: Client, process_id: str | None = None) -> list[Json]:
    """What is known of processes that are no longer kept."""
    entries: list[Json] = client.call("process/listForgotten", {"processId": process_id})["processes"]
    return entries


def forgotten_soon(endpoint: Endpoint, process_id: str) -> Json:
    """The one entry of a process whose session is about to end."""
    client = endpoint.connect()
    assert eventually(lambda: bool(forgotten(client, process_id)), PATIENCE)
    (entry,) = forgotten(client, process_id)
    return entry


# -- the time to live


@pytest.mark.transports("stdio", "unix", "ws")
@pytest.mark.statement("H32", "X12")
def test_a_client_sets_the_time_of_its_session_and_takes_it_back(endpoint: Endpoint) -> None:
    client = endpoint.connect(extensions=True)
    default = client.initialized["sessionTtlMs"]
    assert "session/setTtl" in client.initialized["environmentInfo"]["capabilities"]["execserver"]
    assert client.call("session/setTtl", {"ttlMs": 12_345}) == {"sessionTtlMs": 12_345}
    assert client.call("session/setTtl", {"ttlMs": None}) == {"sessionTtlMs": default}


@pytest.mark.statement("H30", "H32")
def test_a_session_outlives_the_time_of_the_daemon_and_another_does_not(endpoint: Endpoint) -> None:
    endpoint = endpoint.private("--session-ttl", "0.3")
    long, short = endpoint.connect(), endpoint.connect()
    long.call("session/setTtl", {"ttlMs": DAY_MS})
    kept, killed = (pid_of(each, each.start("/bin/sleep", "300").id) for each in (long, short))
    long.close()
    short.close()
    assert wait_gone(killed)
    assert alive(kept)

    again = resume(endpoint, long.session_id)
    again.close()  # the time is the session's, and not the connection's
    other = endpoint.connect()
    gone = other.start("/bin/sleep", "300")
    pid = pid_of(other, gone.id)
    other.close()
    assert wait_gone(pid)
    assert alive(kept)


@pytest.mark.statement("H30", "H32")
def test_a_session_may_be_kept_for_less_than_the_time_of_the_daemon(endpoint: Endpoint) -> None:
    client = endpoint.private("--session-ttl", "3600").connect()
    pid = pid_of(client, client.start("/bin/sleep", "300").id)
    client.call("session/setTtl", {"ttlMs": 1})
    client.call("environment/status")
    assert alive(pid), "no time passes while the connection is there"
    client.close()
    assert wait_gone(pid)


@pytest.mark.statement("H33")
def test_a_time_above_the_limit_is_refused_by_the_name_of_the_setting(client: Client) -> None:
    week = 7 * DAY_MS
    assert client.call("session/setTtl", {"ttlMs": week}) == {"sessionTtlMs": week}
    failure = client.refused("session/setTtl", {"ttlMs": week + 1})
    assert failure.code == -32600
    assert "`ttlMs`" in failure.message
    assert "--max-session-ttl" in failure.message
    assert "604800 s" in failure.message


@pytest.mark.statement("H33")
@pytest.mark.parametrize(
    ("flags", "longest"),
    [(("--max-session-ttl", "60"), 80_000), (("--session-ttl", "5", "--max-session-ttl", "60.5"), 60_500)],
    ids=["below-the-default", "above-it"],
)
def test_the_limit_is_a_setting_and_never_below_the_time_of_the_daemon(
    endpoint: Endpoint, flags: tuple[str, ...], longest: int
) -> None:
    client = endpoint.private(*flags).connect(extensions=True)
    assert client.call("session/setTtl", {"ttlMs": longest}) == {"sessionTtlMs": longest}
    assert client.refused("session/setTtl", {"ttlMs": longest + 1}).code == -32600
    session = client.session_id
    client.close()
    again = resume(endpoint.endpoints[-1], session)
    assert again.call("session/setTtl", {"ttlMs": 1000}) == {"sessionTtlMs": 1000}


@pytest.mark.statement("H33", "E11", "H4")
@pytest.mark.parametrize("params", [{}, {"ttlMs": 0}, {"ttlMs": -5}, {"ttlMs": 1.5}, {"ttlMs": "8h"}])
def test_no_time_is_set_by_a_value_that_is_none(endpoint: Endpoint, params: Json) -> None:
    early = endpoint.connect(handshake=False)
    failure = early.refused("session/setTtl", {"ttlMs": 1})
    assert failure.message == "client must call initialize before using session methods"
    early.handshake()
    assert early.refused("session/setTtl", params).code == -32602


@pytest.mark.statement("H34", "H41")
def test_the_time_of_a_session_is_kept_by_every_new_server(endpoint: Endpoint) -> None:
    endpoint = endpoint.private("--session-ttl", "0.5")
    client = endpoint.connect()
    client.call("session/setTtl", {"ttlMs": DAY_MS})
    pid = pid_of(client, client.start("/bin/sleep", "300").id)
    session = client.session_id
    for _ in range(2):
        kill_server(endpoint)
        short = endpoint.connect()  # to the new server: its session ends after the time of the daemon
        gone = pid_of(short, short.start("/bin/sleep", "300").id)
        short.close()
        assert wait_gone(gone)
        assert alive(pid)
    again = endpoint.connect(resume=session, extensions=True)
    assert again.initialized["sessionTtlMs"] == DAY_MS
    assert [entry["pid"] for entry in again.call("process/list", {})["processes"]] == [pid]


@pytest.mark.statement("H34")
def test_a_time_that_was_granted_outlives_an_upgrade_to_a_lower_limit(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    config = tmp_path / "execserver.toml"
    config.write_text("session_ttl = 0.5\n")
    config.chmod(0o600)
    endpoint = endpoint.private("--config", str(config))
    client = endpoint.connect()
    client.call("session/setTtl", {"ttlMs": DAY_MS})
    session = client.session_id
    config.write_text("session_ttl = 0.5\nmax_session_ttl = 10\n")
    os.kill(endpoint.server.pid, signal.SIGHUP)
    client.wait_end()
    again = endpoint.connect(resume=session, extensions=True)
    assert again.initialized["sessionTtlMs"] == DAY_MS
    assert again.refused("session/setTtl", {"ttlMs": DAY_MS}).code == -32600


# -- processes that are no longer kept


@pytest.mark.statement("L14")
def test_after_the_end_of_a_session_its_processes_are_known_with_their_end(endpoint: Endpoint) -> None:
    before = round(time.time() * 1000)
    client = endpoint.connect()
    client.call("session/setTtl", {"ttlMs": 200})
    ended = client.shell("exit 3", processId="ended-first").wait_closed()
    client.start("/bin/sleep", "300", processId="killed-with-it")
    client.close()
    entry = forgotten_soon(endpoint, "killed-with-it")
    assert (entry["sessionId"], entry["reason"]) == (client.session_id, "sessionExpired")
    assert (entry["exitCode"], entry["cause"], entry["sessionTtlMs"]) == (None, None, 200)
    assert before - 50 <= entry["startedAtMs"] <= entry["atMs"] <= time.time() * 1000
    assert entry["agoMs"] < PATIENCE * 1000
    other = forgotten_soon(endpoint, ended.id)
    assert (other["exitCode"], other["cause"], other["reason"]) == (3, "normal", "sessionExpired")
    everything = forgotten(endpoint.connect())
    assert {"killed-with-it", "ended-first"} <= {each["processId"] for each in everything}


@pytest.mark.statement("L14", "H50")
def test_a_session_that_its_client_ended_is_told_from_one_that_expired(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    client.start("/bin/sleep", "300", processId="ended-by-its-client")
    assert not forgotten(client, "ended-by-its-client"), "it is still there"
    client.call("session/end")
    assert forgotten_soon(endpoint, "ended-by-its-client")["reason"] == "sessionEnded"


@pytest.mark.statement("L14", "P35")
def test_a_process_that_is_forgotten_in_a_living_session_is_known_too(endpoint: Endpoint) -> None:
    endpoint = endpoint.private("--process-ttl", "0.2")
    client = endpoint.connect()
    client.shell("exit 4", processId="short").wait_closed()
    entry = forgotten_soon(endpoint, "short")
    assert (entry["reason"], entry["exitCode"], entry["sessionTtlMs"]) == ("processExpired", 4, None)
    assert entry["startedAtMs"] - 50 <= entry["atMs"]
    client.call("session/end")
    assert [each["reason"] for each in forgotten(endpoint.connect(), "short")] == ["processExpired"]


@pytest.mark.statement("L15")
def test_ids_of_megabytes_are_not_kept_for_a_day(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    longest = "longest".ljust(256, "x")
    for process_id in (longest + "x", "huge".ljust(1 << 20, "x"), longest):
        client.shell("exit 4", processId=process_id).wait_closed()
    client.call("session/end")
    assert forgotten_soon(endpoint, longest)["exitCode"] == 4
    assert all(len(each["processId"]) <= 256 for each in forgotten(endpoint.connect()))


@pytest.mark.statement("L15")
def test_a_new_server_knows_what_the_dead_one_knew(endpoint: Endpoint) -> None:
    endpoint = endpoint.private("--process-ttl", "0.2")
    client, expired = endpoint.connect(), endpoint.connect()
    client.shell("exit 4", processId="short").wait_closed()
    expired.call("session/setTtl", {"ttlMs": 1})
    expired.start("/bin/sleep", "300", processId="expired")
    expired.close()
    before = [forgotten_soon(endpoint, name) for name in ("short", "expired")]
    kill_server(endpoint)
    after = [forgotten_soon(endpoint, name) for name in ("short", "expired")]
    for one, other in zip(before, after, strict=True):
        assert other["agoMs"] >= 0
        # The close of a process is known by other clocks than the one that lists it.
        assert abs(one.pop("atMs") - other.pop("atMs")) < 1000
        assert one.pop("agoMs") >= 0
        assert other.pop("agoMs") >= 0
        assert one == other


@pytest.mark.statement("L15", "H54")
def test_a_session_whose_time_is_over_while_there_is_no_server_is_known_after_its_end(
    endpoint: Endpoint,
) -> None:
    endpoint = endpoint.private()
    client = endpoint.connect()
    client.call("session/setTtl", {"ttlMs": 300})
    pid = pid_of(client, client.start("/bin/sleep", "300", processId="late").id)
    with without_server(endpoint):
        client.wait_end()
        assert alive(pid)
    entry = forgotten_soon(endpoint, "late")
    assert (entry["reason"], entry["sessionTtlMs"]) == ("sessionExpired", 300)
    assert wait_gone(pid)


@pytest.mark.transports("ws", "relay")
@pytest.mark.statement("L16", "L6")
def test_an_unknown_peer_learns_of_the_forgotten_processes_of_its_own_session_only(
    endpoint: Endpoint,
) -> None:
    endpoint = endpoint.private("--process-ttl", "0.2")
    own, other = endpoint.connect(), endpoint.connect()
    for client, name in ((own, "own"), (other, "other")):
        client.shell("exit 5", processId=name).wait_closed()
        assert eventually(lambda client=client: bool(forgotten(client)), PATIENCE)  # type: ignore[misc]
    assert [(each["processId"], each["exitCode"]) for each in forgotten(own)] == [("own", 5)]
    assert not forgotten(own, "other")
    other.call("session/setTtl", {"ttlMs": 1})
    pid = pid_of(other, other.start("/bin/sleep", "300", processId="expired").id)
    other.close()
    assert wait_gone(pid)
    assert not forgotten(own, "expired")


@pytest.mark.transports("ws")
@pytest.mark.statement("L16", "L6")
def test_a_peer_with_credentials_learns_of_all_forgotten_processes(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    server = endpoint.private("--ws-auth", "capability-token", "--ws-token-file", str(token)).server
    with (
        server.connect({"Authorization": f"Bearer {TOKEN}"}) as owner,
        server.connect({"Authorization": f"Bearer {TOKEN}"}) as other,
    ):
        owner.start("/bin/sleep", "300", processId="of-another")
        owner.call("session/end")
        assert [each["reason"] for each in forgotten(other, "of-another")] == ["sessionEnded"]
