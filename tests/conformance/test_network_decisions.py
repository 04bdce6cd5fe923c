"""The client decides on hosts that a command wants to reach: once, in time, and over lost connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.endpoint import OWN_SERVER, Endpoint
from tests.conformance.test_sessions import resume
from tests.conformance.test_survive import kill_server, without_server
from tests.integration.http.origin import Serve, response
from tests.support.schemas import check
from tests.support.wire import PATIENCE, Client, Json, Process, Server, connect_unix

EVERY_FRAMING = pytest.mark.transports(
    "stdio", "stdio/sized", "unix", "unix/standard", "unix-ws", "ws", "ws/standard", "relay"
)

FETCHING = r"""
fetch() {
    exec 3<>/dev/tcp/127.0.0.1/${HTTP_PROXY##*:}
    printf 'GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "$1" >&3
    read -r _ status _ <&3
    echo "$1 $status."
}
while read -r target; do fetch "$target" & done
wait
"""
"""Fetches from each HOST:PORT on its standard input, through its proxy, and prints the status."""

SETTINGS = {
    "enabled": True,
    "enableSocks5": False,
    "enableSocks5Udp": False,
    "allowUpstreamProxy": False,
    "dangerouslyAllowAllUnixSockets": False,
    "mode": "full",
    "allowLocalBinding": True,
}

UNKNOWN = "127.0.0.1:9"
"""No server is there: for questions that are denied."""


def allow(**members: Json) -> Json:
    return {"decision": {"type": "allow", **members}}


def deny(reason: str | None = "because", **members: Json) -> Json:
    return {"decision": {"type": "deny", "reason": reason, **members}}


class Fetcher:
    """A process that fetches what it is told to, and whose proxy asks."""

    def __init__(
        self, client: Client, *, timeout_ms: int | None = 60_000, domains: dict[str, str] | None = None
    ) -> None:
        proxy = {"proxy": {**SETTINGS, "domains": domains}, "policyDecisionTimeoutMs": timeout_ms}
        self.process = client.start("/bin/bash", "-c", FETCHING, pipeStdin=True, networkProxy=proxy)
        self._writes = 0

    def fetch(self, target: str) -> None:
        """Begin to fetch."""
        self._writes += 1
        assert self.process.write(f"{target}\n", f"{self.process.id} {self._writes}") == "accepted"

    def status(self, target: str, count: int = 1) -> int:
        """The status of the newest answer for a target, once there are so many."""
        wanted = f"{target} ".encode()
        output = self.process.wait_output(
            lambda output: output.count(wanted) >= count and output[-2:] == b".\n"
        )
        return int(output.rpartition(wanted)[2].partition(b".")[0])

    def on(self, client: Client) -> Fetcher:
        """The same, after a resume; output before is not known here."""
        self.process = Process(client, self.process.id)
        self.process.read()
        return self


def question(client: Client, count: int = 1) -> Json:
    """The newest request of the server, once there are so many."""
    client.wait_until(lambda: len(client.questions) >= count, what="a question")
    return client.questions[count - 1]


def decisions(client: Client, count: int) -> list[Json]:
    """The reported decisions, once there are so many."""

    def reported() -> list[Json]:
        return [each["params"] for each in client.notifications if each["method"] == "network/policyDecision"]

    client.wait_until(lambda: len(reported()) >= count, what="a decision")
    return reported()


@pytest.fixture
def target(serve: Serve) -> str:
    """A server to reach, as HOST:PORT."""
    origin = serve(lambda exchange: exchange.send(response(b"hello")))
    return f"127.0.0.1:{origin.port}"


@EVERY_FRAMING
@pytest.mark.statement("Q20", "Q21", "Q23", "Q40", "E40", "E41")
def test_the_answer_of_the_client_decides(client: Client, target: str) -> None:
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    asked = question(client)
    assert asked["method"] == "network/policyRequest"
    assert asked["id"] == 1
    host, _, port = target.partition(":")
    request = {"protocol": "http", "host": host, "port": int(port)}
    assert asked["params"] == {"processId": fetcher.process.id, "request": request}
    check("server-requests/network.policyRequest.params.json", asked["params"])
    client.respond(1, result=allow())
    assert fetcher.status(target) == 200

    for number, answer in ((2, deny()), (3, {"decision": {"type": "ask", "reason": "a person"}})):
        fetcher.fetch(UNKNOWN)
        assert question(client, number)["id"] == number
        check("server-requests/network.policyRequest.result.json", answer)
        client.respond(number, result=answer)
        assert fetcher.status(UNKNOWN, number - 1) == 403

    reported = decisions(client, 3)
    for event in reported:
        check("events/network.policyDecision.json", event)
    assert [(event["decision"], event["source"]) for event in reported] == [
        ("allow", "decider"), ("deny", "decider"), ("ask", "decider"),
    ]  # fmt: skip
    assert [event["reason"] for event in reported][1:] == ["because", "a person"]
    assert [event["policyOverride"] for event in reported] == [True, False, False]


@pytest.mark.statement("Q22", "E42")
@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32601, "message": "there is no such method"}},
        {"error": None},
        {"result": None},
        {"result": {"decision": {"type": "yes"}}},
        {"result": allow(reason="r" * 1025)},
        {"result": allow(), "error": {"code": 1, "message": "both"}},
    ],
)
def test_what_is_no_answer_denies_and_is_asked_again(client: Client, target: str, answer: Json) -> None:
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    client.respond(question(client)["id"], **answer)
    assert fetcher.status(target) == 403
    assert decisions(client, 1)[0]["reason"] == "not_allowed"
    fetcher.fetch(target)
    client.respond(question(client, 2)["id"], result=allow())
    assert fetcher.status(target, 2) == 200


@pytest.mark.statement("Q22", "Q24", "E42")
def test_without_an_answer_in_time_the_host_is_denied_and_a_late_one_changes_nothing(
    endpoint: Endpoint, target: str
) -> None:
    client = endpoint.connect(extensions=True)
    fetcher = Fetcher(client, timeout_ms=200)
    began = time.monotonic()
    fetcher.fetch(target)
    assert question(client)["id"] == 1
    assert fetcher.status(target) == 403
    assert 0.2 <= time.monotonic() - began < 10

    client.respond(1, result=allow())
    client.respond(1, result=allow())
    fetcher.fetch(target)
    assert question(client, 2)["id"] == 2
    assert client.call("environment/status") == {"status": "ready"}
    assert fetcher.status(target, 2) == 403


@pytest.mark.statement("Q24", "E42")
def test_a_second_answer_changes_nothing(endpoint: Endpoint, target: str) -> None:
    client = endpoint.connect(extensions=True)
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    number = question(client)["id"]
    client.respond(number, result=allow())
    client.respond(number, result=deny())
    client.respond(number, error={"code": 1, "message": "no"})
    assert fetcher.status(target) == 200
    fetcher.fetch(target)
    assert fetcher.status(target, 2) == 200
    assert len(client.questions) == 1


@pytest.mark.statement("E30", "E42")
def test_an_answer_to_a_request_that_never_was_ends_the_connection(client: Client) -> None:
    Fetcher(client).fetch(UNKNOWN)
    number = question(client)["id"]
    client.respond(number + 1, result=allow())
    client.wait_end()


@pytest.mark.statement("Q20")
def test_without_a_time_limit_nothing_is_asked(client: Client) -> None:
    fetcher = Fetcher(client, timeout_ms=None)
    fetcher.fetch(UNKNOWN)
    assert fetcher.status(UNKNOWN) == 403
    assert decisions(client, 1)[0]["source"] == "baseline_policy"
    assert client.questions == []


@pytest.mark.statement("Q20")
@pytest.mark.parametrize(("verdict", "status"), [("allow", 200), ("deny", 403)])
def test_a_verdict_of_the_start_comes_before_every_answer(
    endpoint: Endpoint, target: str, verdict: str, status: int
) -> None:
    client = endpoint.connect(extensions=True)
    asking = Fetcher(client)
    asking.fetch(target)
    client.respond(question(client)["id"], result=deny() if verdict == "allow" else allow())
    assert asking.status(target) != status

    settled = Fetcher(client, domains={"127.0.0.1": verdict})
    settled.fetch(target)
    assert settled.status(target) == status
    assert len(client.questions) == 1


@pytest.mark.statement("Q25")
@pytest.mark.parametrize("extensions", [False, True])
@pytest.mark.parametrize("scope", [None, "once", "session"])
def test_an_answer_is_kept_for_the_session_if_the_client_says_so(
    endpoint: Endpoint, target: str, scope: str | None, extensions: bool
) -> None:
    client = endpoint.connect(extensions=extensions)
    kept = scope == "session" or (scope is None and extensions)
    for process in range(2):
        fetcher = Fetcher(client)
        for attempt in range(2):
            fetcher.fetch(target)
            if not kept or not client.questions:
                number = question(client, 2 * process + attempt + 1)["id"]
                client.respond(number, result=allow() if scope is None else allow(scope=scope))
            assert fetcher.status(target, attempt + 1) == 200
    assert len(client.questions) == (1 if kept else 4)


@pytest.mark.statement("Q26")
def test_equal_questions_at_a_time_are_one(endpoint: Endpoint, target: str) -> None:
    client = endpoint.connect(extensions=True)
    fetchers = [Fetcher(client), Fetcher(client)]
    for fetcher in fetchers:
        for _ in range(3):
            fetcher.fetch(target)
    question(client)
    threading.Event().wait(0.3)
    assert len(client.questions) == 1
    client.respond(1, result=allow())
    for fetcher in fetchers:
        assert fetcher.status(target, 3) == 200
    assert len(client.questions) == 1


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("Q28")
def test_a_question_whose_connection_is_cut_is_asked_again(endpoint: Endpoint, target: str) -> None:
    client = endpoint.connect()
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    asked = question(client)
    client.close()

    again = resume(endpoint, client.session_id)
    assert question(again) == asked
    fetcher.on(again)
    again.respond(asked["id"], result=allow())
    assert fetcher.status(target) == 200
    assert len(again.questions) == 1


@pytest.mark.transports("unix")
@pytest.mark.statement("Q31")
def test_a_question_keeps_its_name_on_the_next_connection(endpoint: Endpoint, target: str) -> None:
    client = endpoint.connect(extensions=True)
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    fetcher.fetch(UNKNOWN)
    names = [question(client, number)["params"].pop("questionId") for number in (1, 2)]
    assert len(set(names)) == 2
    for number in (1, 2):
        check("server-requests/network.policyRequest.params.json", question(client, number)["params"])
    client.close()

    again = resume(endpoint, client.session_id, extensions=True)
    assert {question(again, number)["params"]["questionId"] for number in (1, 2)} == set(names)


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("Q28")
def test_nothing_is_asked_before_the_handshake_is_complete(endpoint: Endpoint, target: str) -> None:
    client = endpoint.connect()
    Fetcher(client).fetch(target)
    question(client)
    client.close()

    again = endpoint.connect(handshake=False)

    def attached() -> bool:
        params = {"clientName": "tests", "resumeSessionId": client.session_id}
        return "result" in again.reply(again.request("initialize", params))

    wait_for(attached)
    threading.Event().wait(0.2)
    assert again.questions == []
    again.notify("initialized")
    question(again)


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("Q25", "Q28")
def test_an_answer_holds_on_the_next_connection(endpoint: Endpoint, target: str) -> None:
    client = endpoint.connect(extensions=True)
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    client.respond(question(client)["id"], result=allow())
    client.close()

    again = resume(endpoint, client.session_id)
    fetcher.on(again).fetch(target)
    assert fetcher.status(target) == 200
    assert again.questions == []


@pytest.mark.transports("unix")
@pytest.mark.statement("Q22", "Q28", "Q41")
def test_without_a_connection_the_host_is_denied_in_time_and_the_next_one_is_told(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    fetcher = Fetcher(client, timeout_ms=1000)
    fetcher.fetch(UNKNOWN)
    question(client)
    client.close()
    threading.Event().wait(1.5)

    again = resume(endpoint, client.session_id)
    page = Process(again, fetcher.process.id).read(wait_ms=10_000)
    assert len(page["chunks"]) == 1
    assert again.questions == []
    assert [event["reason"] for event in decisions(again, 1)] == ["not_allowed"]


@pytest.mark.transports("unix")
@pytest.mark.statement("Q27")
def test_another_session_that_observes_the_process_is_not_asked(endpoint: Endpoint, target: str) -> None:
    owner, observer = endpoint.connect(), endpoint.connect()
    fetcher = Fetcher(owner)
    observer.call(
        "process/subscribe", {"sessionId": owner.session_id, "processId": fetcher.process.id, "afterSeq": 0}
    )
    fetcher.fetch(target)
    question(owner)
    owner.close()
    threading.Event().wait(0.3)
    assert observer.questions == []

    again = resume(endpoint, owner.session_id)
    fetcher.on(again)
    again.respond(question(again)["id"], result=allow())
    assert fetcher.status(target) == 200
    assert observer.questions == []
    assert [each for each in observer.notifications if "network" in each["method"]] == []


@pytest.mark.transports("unix")
@pytest.mark.statement("Q29")
def test_answers_survive_the_server_and_an_open_question_is_asked_by_the_next(
    endpoint: Endpoint, target: str
) -> None:
    private = endpoint.private()
    client = private.connect(extensions=True)
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    client.respond(question(client)["id"], result=allow())
    assert fetcher.status(target) == 200
    fetcher.fetch(UNKNOWN)
    asked = question(client, 2)
    with without_server(private):
        threading.Event().wait(0.2)

    again = resume(private, client.session_id)
    assert question(again)["params"]["request"] == asked["params"]["request"]
    fetcher.on(again)
    again.respond(1, result=deny(scope="session"))
    assert fetcher.status(UNKNOWN) == 403
    fetcher.fetch(target)
    assert fetcher.status(target) == 200
    kill_server(private)

    last = resume(private, client.session_id)
    fetcher.on(last).fetch(target)
    fetcher.fetch(UNKNOWN)
    assert (fetcher.status(target), fetcher.status(UNKNOWN)) == (200, 403)
    assert (len(again.questions), last.questions) == (1, [])


@pytest.mark.everywhere
@pytest.mark.statement("Q30", "S12")
def test_an_answer_overtakes_a_read_that_waits_for_its_process(endpoint: Endpoint, target: str) -> None:
    private = endpoint.private("--concurrent-requests", "1")
    client = private.connect()
    fetcher = Fetcher(client)
    fetcher.fetch(target)
    number = question(client)["id"]
    read = client.request("process/read", {"processId": fetcher.process.id, "waitMs": 60_000})
    status = client.request("environment/status")
    client.respond(number, result=allow())
    assert client.result(read)["chunks"] != []
    assert client.result(status) == {"status": "ready"}
    assert fetcher.status(target) == 200


def wait_for(done: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


@pytest.mark.skipif(not OWN_SERVER, reason="another executor has no such settings")
@pytest.mark.statement("Q11")
def test_the_daemon_limits_connections_and_bytes_of_a_proxy(
    environment: dict[str, str], tmp_path: Path, target: str
) -> None:
    limits = ("--proxy-connections=1", "--proxy-max-bytes=1")
    server = Server(f"unix://{tmp_path}/s", *limits, env=environment, cwd=tmp_path)
    try:
        with connect_unix(f"{tmp_path}/s") as client:
            settings = {**SETTINGS, "domains": {"127.0.0.1": "allow"}}
            process = client.handshake().shell(
                "echo ${HTTP_PROXY##*:}; read -r line", networkProxy={"proxy": settings}, pipeStdin=True
            )
            port = int(process.wait_output(lambda output: output.endswith(b"\n")))
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as first:
                first.sendall(f"GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
                assert b"503 Service Unavailable" in first.recv(65_536)
                with socket.create_connection(("127.0.0.1", port), PATIENCE) as second:
                    answer = second.makefile("rb").read()
            assert b"limit of 1 connections" in answer
    finally:
        assert server.stop() == 0
