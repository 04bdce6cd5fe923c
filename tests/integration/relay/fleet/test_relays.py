"""Relays that share a NATS cluster: `relay serve --nats`, with real executors, clients and tokens."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execclient.sync import connect
from execprotocol.relay.keys import KeyPair
from execserver.relay.executor.options import TOKEN_VARIABLE
from tests.integration.http.certificates import make_authority, server_context
from tests.support.nats_servers import NatsServers, jwt_files
from tests.support.relay_peers import RawClient, RawExecutor, RawSocket, ask
from tests.support.relay_service import RelayService, command, wait_until
from tests.support.slow_line import End, slow_line
from tests.support.wire import PATIENCE, Server

SOON = 5.0
"""A revocation ends sockets within a second, on an idle machine."""

ENDS_SECONDS = 6.0
"""A relay ends within 5 s of SIGTERM."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("nats"), 3) as servers:
        yield servers


@pytest.fixture(scope="module")
def relays(nats: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RelayService]]:
    """Two relays of one fleet."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(RelayService(tmp_path_factory.mktemp("relay"), nats=("--nats", nats.url)))
            for _ in range(2)
        ]


@contextlib.contextmanager
def executing(relay: RelayService, environment: str, token: str) -> Iterator[Server]:
    """A real executor that serves an environment at a relay."""
    flags = ("--remote", relay.url, "--environment-id", environment)
    server = Server(None, *flags, env={**os.environ, TOKEN_VARIABLE: token})
    try:
        relay.wait_online(environment)
        yield server
    finally:
        assert server.stop() == 0


def rows(relay: RelayService) -> set[str]:
    return {row["environment"] for row in relay.environments()}


def test_a_client_at_one_relay_reaches_an_executor_at_the_other(relays: list[RelayService]) -> None:
    one, other = relays
    executor, client = one.token("executor", "box"), one.token("client", "box")
    with executing(one, "box", executor):
        other.wait_online("box")
        for relay in (other, one):
            with connect(relay.client_url("box"), token=client) as executor_there:
                result = executor_there.run(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; exit 3"])
                assert result.exit_code == 3
                assert len(result.stdout) == 3_000_000


def test_every_relay_lists_the_executors_of_all(relays: list[RelayService]) -> None:
    one, other = relays
    token = other.token("executor", "listed")
    with executing(one, "listed", token):
        other.wait_online("listed")
        assert "listed" in rows(one) & rows(other)
    wait_until(lambda: "listed" not in rows(one) | rows(other), PATIENCE)


def test_the_metrics_show_the_share_in_the_fleet(relays: list[RelayService]) -> None:
    one, other = relays
    executor, client = one.token("executor", "seen"), one.token("client", "seen")
    with RawExecutor(one, "seen", executor):
        other.wait_online("seen")
        with RawClient(other, "seen", client):
            pass
    found = other.metrics()
    assert found["execserver_relay_fleet_nodes"] == 2
    assert found["execserver_relay_nats_connected"] == 1
    assert found['execserver_relay_bus_frames_total{direction="out"}'] > 0
    assert found['execserver_relay_store_duration_seconds_count{operation="use_up"}'] > 0
    assert found['execserver_relay_store_errors_total{operation="save"}'] == 0
    assert found["execserver_relay_health_write_age_seconds"] < PATIENCE


def test_an_environment_that_an_executor_has_at_one_relay_is_not_given_away_at_the_other(
    relays: list[RelayService],
) -> None:
    one, other = relays
    token = one.token("executor", "taken")
    with RawExecutor(one, "taken", token), pytest.raises(AssertionError, match="another executor has"):
        RawExecutor(other, "taken", token)


def test_a_ticket_of_one_relay_is_redeemed_once_at_the_other(relays: list[RelayService]) -> None:
    one, other = relays
    executor, client = one.token("executor", "ticket"), one.token("client", "ticket")
    with RawExecutor(one, "ticket", executor):
        other.wait_online("ticket")
        answer = ask(
            one.url,
            "/cloud/environment/ticket/connect",
            "POST",
            token=client,
            body={"harness_public_key": KeyPair.generate().public.to_json()},
        )
        url = answer.json["url"].replace(one.url.partition("//")[2], other.url.partition("//")[2])
        with RawSocket(url):
            pass
        with pytest.raises(Exception, match="401"):
            RawSocket(answer.json["url"])


def test_a_revoked_token_ends_its_sockets_at_every_relay_within_a_second(relays: list[RelayService]) -> None:
    one, other = relays
    executor, client = one.token("executor", "revoked"), one.token("client", "revoked")
    with RawExecutor(one, "revoked", executor) as kept:
        other.wait_online("revoked")
        with RawClient(one, "revoked", client) as here, RawClient(other, "revoked", client) as there:
            one.revoke(client)
            began = time.monotonic()
            assert here.closed_with() == 1008
            assert there.closed_with() == 1008
            assert time.monotonic() - began < SOON
        one.revoke(executor)
        began = time.monotonic()
        assert kept.closed_with() == 1008
        assert time.monotonic() - began < SOON
    wait_until(lambda: "revoked" not in rows(one) | rows(other))
    answer = ask(other.url, "/cloud/environment/revoked/register", "POST", token=executor, body={})
    assert answer.status == 401


def test_after_a_partition_the_executor_that_lost_its_place_and_revoked_clients_are_told(
    tmp_path: Path,
) -> None:
    with NatsServers(tmp_path / "nats", advertise=False) as nats, contextlib.ExitStack() as stack:
        server = End(port=nats[0].port)
        line = contextlib.ExitStack()
        stack.callback(line.close)
        near = line.enter_context(slow_line(End(), server, 0.0))
        ways = f"nats://127.0.0.1:{near.port}", nats.url
        cut_off, other = (
            stack.enter_context(RelayService(tmp_path / name, nats=("--nats", url)))
            for name, url in zip(("cut-off", "other"), ways, strict=True)
        )
        executor, client = other.token("executor", "box", "kept"), other.token("client", "box", "kept")
        first = stack.enter_context(RawExecutor(cut_off, "box", executor))
        kept = stack.enter_context(RawExecutor(cut_off, "kept", executor))
        lost = stack.enter_context(RawClient(cut_off, "kept", client))
        other.wait_online("kept")

        line.close()
        wait_until(lambda: bool(cut_off.fault()), PATIENCE, "the partition was not noticed")
        wait_until(lambda: "box" not in rows(other), PATIENCE, "a dead relay keeps its executors")
        second = stack.enter_context(RawExecutor(other, "box", executor))
        other.revoke(client)
        path, body = "/cloud/environment/box/connect", {"harness_public_key": first.keys.public.to_json()}
        assert ask(cut_off.url, path, "POST", token=client, body=body).status == 409  # nothing is given away
        stack.enter_context(slow_line(End(port=near.port), server, 0.0))
        cut_off.wait_ready()

        assert first.closed_with() == 1008
        assert lost.closed_with() == 1008
        wait_until(lambda: rows(cut_off) == rows(other) == {"box", "kept"}, PATIENCE)
        for relay in (cut_off, other):
            (row,) = [row for row in relay.environments() if row["environment"] == "box"]
            assert row["key"] == second.keys.public.fingerprint
        other.revoke(executor)
        assert (kept.closed_with(), second.closed_with()) == (1008, 1008)


def test_the_commands_for_tokens_say_what_is_wrong(nats: NatsServers, tmp_path: Path) -> None:
    flags = ("--nats", nats.url, "--nats-prefix", "commands")
    created = command("token", "create", "--role", "client", "--environment", "a", "--note", "n", *flags)
    assert created.stdout.startswith("xrt_"), created.stderr
    listed = command("token", "list", *flags)
    assert " client  a " in listed.stdout
    assert created.stdout.strip() not in listed.stdout
    unknown = command("token", "revoke", "12345678", *flags)
    assert unknown.returncode == 1
    assert "there is no token '12345678'" in unknown.stderr
    invalid = command("token", "create", "--role", "client", "--environment", "a b", *flags)
    assert invalid.returncode == 1
    assert "`environments`" in invalid.stderr
    nowhere = command("token", "list", "--nats", "nats://127.0.0.1:1")
    assert nowhere.returncode == 1
    assert "no connection to NATS at nats://127.0.0.1:1" in nowhere.stderr
    both = command("token", "list", "--state-dir", str(tmp_path), *flags)
    assert both.returncode == 2
    without = command("token", "list", "--state-dir", str(tmp_path), "--nats-prefix", "p")
    assert without.returncode == 1
    assert "--nats URL" in without.stderr


def test_the_folder_of_a_relay_of_a_fleet_takes_no_tokens(
    relays: list[RelayService], nats: NatsServers
) -> None:
    folder = ("--state-dir", str(relays[0].state))
    for refused in (
        command("token", "create", "--role", "client", "--pool", "work", *folder),
        command("token", "list", *folder),
        command("token", "revoke", "12345678", *folder),
    ):
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"give --nats {nats.url} instead" in refused.stderr


def test_a_relay_may_start_before_its_cluster_and_outlives_it(tmp_path: Path) -> None:
    nats = NatsServers(tmp_path / "nats", start=False)
    flags = ("--nats", nats.url)
    with RelayService(tmp_path / "relay", nats=flags, ready=False) as relay:
        assert "no connection to NATS" in relay.fault()
        answer = ask(relay.url, "/cloud/environment/box/register", "POST", token="xrt_x", body={})
        assert answer.status == 503
        assert "the tokens of the fleet were not read yet" in answer.message
        with nats:
            nats.start()
            relay.wait_ready()
            executor, client = relay.token("executor", "box"), relay.token("client", "box")
            with RawExecutor(relay, "box", executor):
                relay.wait_online("box")
                with RawClient(relay, "box", client):
                    pass
                nats[0].kill()
                wait_until(lambda: "no connection to NATS" in relay.fault())
                nats.start()
                relay.wait_ready()
                assert relay.log_lines("connection to NATS lost")
                assert rows(relay) == {"box"}
                nats[0].kill()
                began = time.monotonic()
                assert relay.stop() == 0
                assert time.monotonic() - began < ENDS_SECONDS


def test_a_relay_that_ended_is_no_longer_on_the_way_of_others(nats: NatsServers, tmp_path: Path) -> None:
    flags = ("--nats", nats.url, "--nats-prefix", "ended")
    with (
        RelayService(tmp_path / "one", nats=flags) as one,
        RelayService(tmp_path / "other", nats=flags) as other,
    ):
        token = one.token("executor", "box")
        with RawExecutor(one, "box", token):
            other.wait_online("box")
            one.kill()
            wait_until(lambda: not rows(other))
            # Another executor may have the environment now.
            with RawExecutor(other, "box", token):
                other.wait_online("box")


def test_wrong_credentials_end_the_start_with_the_reason(tmp_path: Path) -> None:
    files = jwt_files(tmp_path)
    (tmp_path / "other").mkdir()
    wrong = jwt_files(tmp_path / "other").credentials
    with NatsServers(tmp_path / "nats", settings=files.settings) as nats:
        serve = ("serve", "--listen", "http://127.0.0.1:0", "--state-dir", str(tmp_path / "r"))
        for flags in ((), ("--nats-creds", str(wrong)), ("--nats-creds", str(tmp_path / "missing"))):
            ended = command(*serve, "--nats", nats.url, *flags)
            assert ended.returncode == 1
            assert ended.stdout == ""
            assert "--nats-creds" in ended.stderr or str(wrong) in ended.stderr
        right = ("--nats", nats.url, "--nats-creds", str(files.credentials))
        with RelayService(tmp_path / "relay", nats=right) as relay:
            assert relay.token("client", "box").startswith("xrt_")


def test_a_fleet_over_tls_is_ready_and_a_strange_certificate_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path)
    server_context(tmp_path)
    settings = f'tls {{ cert_file: "{tmp_path}/certificate.pem", key_file: "{tmp_path}/key.pem" }}'
    with NatsServers(tmp_path / "nats", settings=settings) as nats:
        url = nats.url.replace("nats://", "tls://")
        flags = ("--nats", url, "--nats-ca", str(tmp_path / "ca.pem"))
        with RelayService(tmp_path / "relay", nats=flags) as relay:
            assert relay.fault() == ""
        serve = ("serve", "--listen", "http://127.0.0.1:0", "--state-dir", str(tmp_path / "r"))
        ended = command(*serve, "--nats", url)
        assert ended.returncode == 1
        assert "--nats-ca" in ended.stderr


def test_a_relay_without_nats_keeps_its_tokens_in_its_folder(tmp_path: Path) -> None:
    with RelayService(tmp_path) as relay:
        token = relay.token("client", "box")
        relay.revoke(token)
        relay.signal(signal.SIGTERM)
        assert relay.wait() == 0
