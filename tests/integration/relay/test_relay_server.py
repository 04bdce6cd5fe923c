"""A real relay, asked and dialed by hand: what it answers, what it forwards, and whom it sends away."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from execprotocol.relay import frames
from execprotocol.relay.contract import MAX_BODY_BYTES, REJECTION_REASON_HEADER
from execprotocol.relay.frames import MAX_FRAME_BYTES
from execprotocol.relay.keys import KeyPair
from execserver.relay.service.server import DESCRIPTORS
from tests.support.relay_peers import Answer, RawClient, RawExecutor, RawSocket, ask, registration
from tests.support.relay_service import RelayService, wait_until
from tests.support.wire import PATIENCE, UpgradeRefusedError, WebSocketTransport

KEYS = KeyPair.generate()
OTHER_KEYS = KeyPair.generate()
ENVIRONMENTS = ("box", "other", *(f"box-{number}" for number in range(40)))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayService]:
    with RelayService(tmp_path_factory.mktemp("relay") / "state", "--plain-door", "box") as relay:
        yield relay
        assert "Traceback" not in relay.log
        assert relay.stop() == 0


@pytest.fixture(scope="module")
def executor_token(relay: RelayService) -> str:
    return relay.token("executor", *(name for name in ENVIRONMENTS if name != "other"))


@pytest.fixture(scope="module")
def client_token(relay: RelayService) -> str:
    return relay.token("client", *(name for name in ENVIRONMENTS if name != "other"))


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return iter(ENVIRONMENTS[2:])


@pytest.fixture
def box(names: Iterator[str]) -> str:
    """An environment that no other test uses."""
    return next(names)


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    """Closes the sockets of a test."""
    with ExitStack() as stack:
        yield stack


def register(relay: RelayService, box: str, token: str | None, body: object = None) -> Answer:
    path = f"/cloud/environment/{box}/register"
    return ask(relay.url, path, "POST", token=token, body=registration(KEYS) if body is None else body)


def connect(relay: RelayService, box: str, token: str | None, keys: KeyPair = KEYS) -> Answer:
    body = {"harness_public_key": keys.public.to_json()}
    return ask(relay.url, f"/cloud/environment/{box}/connect", "POST", token=token, body=body)


def refused(url: str) -> tuple[int, str]:
    """Status and reason of a refused upgrade."""
    with pytest.raises(UpgradeRefusedError) as caught:
        RawSocket(url).close()
    assert "code" in json.loads(caught.value.body)["error"]
    return caught.value.status, caught.value.headers.get(REJECTION_REASON_HEADER, "")


class Pair:
    """An executor and a client that use one stream."""

    def __init__(
        self, relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack
    ) -> None:
        self.executor = sockets.enter_context(RawExecutor(relay, box, executor_token))
        self.client = sockets.enter_context(RawClient(relay, box, client_token))
        self.stream = f"stream-of-{box}"
        self.client.send(frames.resume(self.stream))
        assert self.executor.receive() == frames.resume(self.stream)

    def frame_for_client(self, payload: bytes = b"down", seq: int = 0) -> bytes:
        return frames.data(self.stream, seq, payload)

    def is_alive(self) -> bool:
        """Whether frames pass in both directions, and nothing else was on its way."""
        up, down = frames.data(self.stream, 7, b"up"), frames.data(self.stream, 8, b"down")
        self.client.send(up)
        self.executor.send(down)
        return (self.executor.receive(), self.client.receive()) == (up, down)


@pytest.fixture
def pair(relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack) -> Pair:
    return Pair(relay, box, executor_token, client_token, sockets)


# ------------------------------------------------------------------ the registry


def test_an_executor_registers_a_client_is_introduced_and_the_executor_may_ask_once(
    relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack
) -> None:
    executor = sockets.enter_context(RawExecutor(relay, box, executor_token, KEYS))
    client = sockets.enter_context(RawClient(relay, box, client_token, OTHER_KEYS))
    answer = client.answer
    question = {
        "executor_registration_id": executor.registration_id,
        "harness_public_key": OTHER_KEYS.public.to_json(),
        "harness_key_authorization": answer["harness_key_authorization"],
    }
    path = f"/cloud/environment/{box}/validate"

    with_another_key = question | {"harness_public_key": KEYS.public.to_json()}
    answers = [
        ask(relay.url, path, "POST", token=executor_token, body=body).json
        for body in (with_another_key, question, question)
    ]

    assert answer["environment_id"] == box
    assert answer["executor_registration_id"] == executor.registration_id
    assert answer["executor_public_key"] == KEYS.public.to_json()
    assert answers == [{"valid": False}, {"valid": True}, {"valid": False}]


@pytest.mark.statement("R9")
def test_there_is_room_for_thousands_of_sockets_before_there_are_threads(relay: RelayService) -> None:
    status = Path(f"/proc/{relay.pid}/status").read_text()

    size = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize:"))
    assert size >= min(DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_urls_name_the_host_that_was_asked(relay: RelayService, box: str, executor_token: str) -> None:
    port = urlsplit(relay.url).port
    path = f"/cloud/environment/{box}/register"

    answer = ask(
        relay.url,
        path,
        "POST",
        token=executor_token,
        body=registration(KEYS),
        headers={"host": f"relay.test:{port}"},
    )

    assert answer.json["url"].startswith(f"ws://relay.test:{port}/cloud/environment/{box}/executor?ticket=")
    assert "role=" not in answer.json["url"]


@pytest.mark.parametrize(
    "host", ["", "a b", "evil/path", "user@host", "host:0", "host:70000", "[::g]", "a" * 300]
)
def test_a_host_that_cannot_stand_in_a_url_is_refused(
    relay: RelayService, executor_token: str, host: str
) -> None:
    path = "/cloud/environment/box/register"

    answer = ask(
        relay.url, path, "POST", token=executor_token, body=registration(KEYS), headers={"host": host}
    )

    assert answer.status == 400
    if answer.headers.get("content-type", "").startswith("application/json"):  # else not even HTTP
        assert "Host" in answer.message


def test_a_register_that_is_refused_for_its_host_has_no_effect(
    relay: RelayService, executor_token: str, box: str
) -> None:
    path = f"/cloud/environment/{box}"
    begun = ask(relay.url, f"{path}/register", "POST", token=executor_token, body=registration(KEYS))
    bad = {"host": "a b"}

    for keys in (KEYS, OTHER_KEYS):
        answer = ask(
            relay.url, f"{path}/register", "POST", token=executor_token, body=registration(keys), headers=bad
        )
        assert answer.status == 400

    # Its URL is still valid, and others are still admitted.
    with closing(RawSocket(begun.json["url"])):
        conflict = ask(
            relay.url, f"{path}/register", "POST", token=executor_token, body=registration(OTHER_KEYS)
        )
    assert conflict.status == 503


def test_no_host_at_all_is_refused(relay: RelayService, executor_token: str) -> None:
    parts = urlsplit(relay.url)
    body = json.dumps(registration(KEYS)).encode()
    head = (
        "POST /cloud/environment/box/register HTTP/1.0\r\n"
        f"authorization: Bearer {executor_token}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with closing(socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE)) as connection:
        connection.sendall(head.encode() + body)

        answer = connection.recv(4096)

    assert answer.split()[1] == b"400"


@pytest.mark.statement("R4")
def test_another_key_has_to_wait_while_an_executor_is_connected_and_the_same_key_gets_in(
    relay: RelayService, box: str, executor_token: str, sockets: ExitStack
) -> None:
    incumbent = sockets.enter_context(RawExecutor(relay, box, executor_token, KEYS))

    newcomer = register(relay, box, executor_token, registration(OTHER_KEYS))
    again = register(relay, box, executor_token)
    incumbent.close()
    wait_until(lambda: box not in [row["environment"] for row in relay.environments()])

    assert (newcomer.status, newcomer.code) == (503, "registration_conflict")
    assert again.status == 200


@pytest.mark.statement("R5")
def test_an_environment_without_executor_is_offline(relay: RelayService, box: str, client_token: str) -> None:
    answer = connect(relay, box, client_token)

    assert (answer.status, answer.code) == (409, "environment_offline")
    assert box in answer.message


@pytest.mark.statement("R2")
@pytest.mark.parametrize("action", ["register", "connect", "validate"])
def test_a_body_that_is_too_long_is_refused(
    relay: RelayService, executor_token: str, client_token: str, action: str
) -> None:
    token = client_token if action == "connect" else executor_token
    path = f"/cloud/environment/box/{action}"

    longest = ask(relay.url, path, "POST", token=token, body=b" " * MAX_BODY_BYTES)
    too_long = ask(relay.url, path, "POST", token=token, body=b" " * (MAX_BODY_BYTES + 1))

    assert (longest.status, longest.code) == (400, "invalid_request")
    assert (too_long.status, too_long.code) == (413, "request_too_large")


@pytest.mark.statement("R2")
@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "object"),
        (b"{}", "`security_profile` is missing"),
        ({"security_profile": "x", "executor_public_key": {}}, "`security_profile`"),
        (registration(KEYS) | {"more": 1}, "`more`"),
        (registration(KEYS) | {"executor_public_key": {}}, "executor_public_key"),
    ],
)
def test_a_body_that_is_not_as_agreed_is_refused_by_the_name_of_the_member(
    relay: RelayService, executor_token: str, body: object, named: str
) -> None:
    answer = register(relay, "box", executor_token, body)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.message


@pytest.mark.statement("R1")
@pytest.mark.parametrize("name", ["a.b", "a%20b", "%C3%A4", "x" * 257, "a%2Fb"])
def test_what_is_no_environment_id_is_refused(relay: RelayService, executor_token: str, name: str) -> None:
    answer = register(relay, name, executor_token)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "environment_id" in answer.message


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/cloud/environment/a/b/register",
        "/cloud/environment/box/direct/register",
        "/metrics",
        "/environments",
    ],
)
def test_other_paths_are_not_found(relay: RelayService, path: str) -> None:
    assert ask(relay.url, path).status == 404


def test_a_wrong_method_is_refused_with_the_right_one(relay: RelayService, executor_token: str) -> None:
    for method, path, allowed in (
        ("GET", "/cloud/environment/box/register", "POST"),
        ("PUT", "/cloud/environment/box/connect", "POST"),
        ("POST", "/cloud/environment/box/executor", "GET"),
    ):
        answer = ask(relay.url, path, method, token=executor_token)

        assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", allowed)


@pytest.mark.statement("R3")
def test_tokens_open_what_they_are_for_and_nothing_else(
    relay: RelayService, executor_token: str, client_token: str
) -> None:
    assert register(relay, "box", None).status == 401
    assert register(relay, "box", "xrt_unknown").status == 401
    assert register(relay, "box", client_token).status == 403
    assert connect(relay, "box", executor_token).status == 403
    assert register(relay, "other", executor_token).status == 403
    assert connect(relay, "other", client_token).status == 403
    assert (
        ask(relay.url, "/cloud/environment/box/validate", "POST", token=client_token, body={}).status == 403
    )
    basic = ask(
        relay.url,
        "/cloud/environment/box/register",
        "POST",
        headers={"authorization": f"Basic {executor_token}"},
        body=registration(KEYS),
    )
    assert (basic.status, basic.headers["www-authenticate"]) == (401, "Bearer")


def test_web_pages_are_sent_away(relay: RelayService, executor_token: str) -> None:
    path = "/cloud/environment/box/register"
    headers = {"origin": "https://evil.test"}

    answer = ask(relay.url, path, "POST", token=executor_token, body=registration(KEYS), headers=headers)

    assert answer.status == 403


def test_health_and_readiness_need_no_credentials(relay: RelayService) -> None:
    assert ask(relay.url, "/healthz").status == 200
    assert ask(relay.url, "/readyz").content == b"ready\n"


# ------------------------------------------------------------------ tickets


@pytest.mark.statement("R6", "R21")
def test_an_executor_may_dial_its_url_again_and_replaces_its_own_socket(
    relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack
) -> None:
    first = sockets.enter_context(RawExecutor(relay, box, executor_token))
    client = sockets.enter_context(RawClient(relay, box, client_token))

    second = sockets.enter_context(RawSocket(first.url))

    assert first.closed_with() == 1001
    assert client.closed_with() == 1013
    newer = sockets.enter_context(RawClient(relay, box, client_token))
    newer.send(frames.resume("s"))
    assert second.receive() == frames.resume("s")


def test_a_new_registration_of_the_same_key_takes_over_once_it_has_dialed(
    relay: RelayService, box: str, executor_token: str, sockets: ExitStack
) -> None:
    older = sockets.enter_context(RawExecutor(relay, box, executor_token, KEYS))

    newer = sockets.enter_context(RawExecutor(relay, box, executor_token, KEYS))

    assert older.closed_with() is not None
    assert refused(older.url) == (410, "unknown_route")
    assert [row["registration"] for row in relay.environments() if row["environment"] == box] == [
        newer.registration_id
    ]


@pytest.mark.statement("R6")
def test_a_client_s_ticket_opens_one_socket(
    relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack
) -> None:
    sockets.enter_context(RawExecutor(relay, box, executor_token))
    client = sockets.enter_context(RawClient(relay, box, client_token))

    assert refused(client.url) == (401, "unknown_route")


def test_tickets_are_worth_nothing_elsewhere(
    relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack
) -> None:
    executor = sockets.enter_context(RawExecutor(relay, box, executor_token))
    unused = connect(relay, box, client_token).json["url"]

    assert refused(executor.url.replace(f"/{box}/", "/box/"))[0] == 410
    assert refused(executor.url.replace("/executor?", "/harness?"))[0] == 401
    assert refused(unused.replace(f"/{box}/", "/box/"))[0] == 401
    assert refused(unused.replace("/harness?", "/executor?"))[0] == 410
    RawSocket(unused).close()


@pytest.mark.statement("R29")
def test_what_is_no_ticket_is_refused(relay: RelayService) -> None:
    base = f"ws{relay.url.removeprefix('http')}/cloud/environment/box"

    assert refused(f"{base}/executor?ticket=made-up") == (410, "unknown_route")
    assert refused(f"{base}/harness?ticket=made-up") == (401, "unknown_route")
    assert refused(f"{base}/harness?ticket=%00%FF") == (401, "unknown_route")
    assert refused(f"{base}/harness?") == (400, "malformed_query")
    assert refused(f"{base}/harness?ticket=a&ticket=b") == (400, "malformed_query")


def test_a_ticket_is_not_spent_on_what_is_no_websocket(
    relay: RelayService, box: str, executor_token: str, client_token: str, sockets: ExitStack
) -> None:
    sockets.enter_context(RawExecutor(relay, box, executor_token))
    url = urlsplit(connect(relay, box, client_token).json["url"])

    plain = ask(relay.url, f"{url.path}?{url.query}")

    assert (plain.status, plain.headers["upgrade"]) == (426, "websocket")
    RawSocket(url.geturl()).close()


def test_a_client_whose_executor_left_is_told_so(
    relay: RelayService, box: str, executor_token: str, client_token: str
) -> None:
    with RawExecutor(relay, box, executor_token):
        url = connect(relay, box, client_token).json["url"]
    wait_until(lambda: box not in [row["environment"] for row in relay.environments()])

    assert refused(url) == (410, "route_unavailable")


# ------------------------------------------------------------------ frames


def test_frames_pass_both_ways_byte_for_byte(pair: Pair) -> None:
    # An ack number, a member of a later version, and members in another order than ours.
    odd = frames.data(pair.stream, 0, b"x") + b"\x18\x05" + b"\x9a\x06\x03abc" + b"\x20\x07"

    pair.client.send(odd)
    pair.executor.send(odd)

    assert pair.executor.receive() == odd
    assert pair.client.receive() == odd


def test_text_and_undecodable_messages_are_dropped_and_the_sockets_stay(
    relay: RelayService, pair: Pair
) -> None:
    before = relay.metrics()

    for peer in (pair.client, pair.executor):
        peer.websocket.send_frame(WebSocketTransport.TEXT, b"hello")
        peer.websocket.send_frame(WebSocketTransport.TEXT, b"\xff no UTF-8")
        for message in (b"", b"\xff", b"\x08\x02" + frames.resume(pair.stream)[2:], b"{}" * 100):
            peer.send(message)

    assert pair.is_alive()
    after = relay.metrics()
    dropped = 'execserver_relay_dropped_frames_total{reason="%s"}'
    assert after[dropped % "text"] - before[dropped % "text"] == 4
    assert after[dropped % "undecodable"] - before[dropped % "undecodable"] == 8


def test_a_message_of_256_kib_passes_and_one_byte_more_ends_that_socket(
    relay: RelayService, pair: Pair
) -> None:
    overhead = len(frames.data(pair.stream, 1, bytes(MAX_FRAME_BYTES - 1000))) - (MAX_FRAME_BYTES - 1000)
    largest = frames.data(pair.stream, 1, bytes(MAX_FRAME_BYTES - overhead))
    assert len(largest) == MAX_FRAME_BYTES

    pair.executor.send(largest)
    pair.client.send(largest)

    assert pair.client.receive() == largest
    assert pair.executor.receive() == largest
    pair.client.send(largest + b"\x00")
    assert pair.client.closed_with() == 1009
    assert frames.decode(pair.executor.receive()).kind == "reset"


def test_a_ping_is_answered(pair: Pair) -> None:
    pair.executor.websocket.send_frame(WebSocketTransport.PING, b"are you there")
    pair.executor.send(pair.frame_for_client())
    assert pair.client.receive() == pair.frame_for_client()

    pongs = pair.executor.websocket.pongs
    wait_until(lambda: pair.is_alive() and list(pongs) == [b"are you there"])  # one in 0.1 s at most


def test_when_the_executor_goes_its_clients_are_told_to_try_again(pair: Pair) -> None:
    pair.executor.close()

    assert pair.client.closed_with() == 1013


def test_when_a_client_goes_the_executor_gets_a_reset(pair: Pair) -> None:
    pair.client.close()

    assert pair.executor.receive() == frames.reset(pair.stream, "relay_peer_closed")


def test_a_close_frame_is_answered_with_one(pair: Pair) -> None:
    pair.client.websocket.send_frame(WebSocketTransport.CLOSE, (1000).to_bytes(2))

    assert pair.client.closed_with() == 1000


def test_tenants_with_the_same_stream_id_never_see_each_other(
    relay: RelayService, names: Iterator[str], executor_token: str, client_token: str, sockets: ExitStack
) -> None:
    pairs = [Pair(relay, next(names), executor_token, client_token, sockets) for _ in range(2)]
    for number, pair in enumerate(pairs):
        pair.client.send(frames.resume("same"))
        pair.client.send(frames.data("same", 0, b"up %d" % number))
        assert pair.executor.receive() == frames.resume("same")
    for number, pair in enumerate(pairs):
        pair.executor.send(frames.data("same", 0, b"down %d" % number))
        # Streams of the other tenant, in both directions.
        pair.executor.send(frames.data(pairs[1 - number].stream, 0, b"for the other one"))

    for number, pair in enumerate(pairs):
        assert pair.executor.receive() == frames.data("same", 0, b"up %d" % number)
        assert pair.client.receive() == frames.data("same", 0, b"down %d" % number)
        assert pair.is_alive()


# ------------------------------------------------------------------ slow peers


def test_a_client_that_takes_nothing_is_cut_and_its_neighbor_is_served_meanwhile(
    relay: RelayService, pair: Pair, box: str, client_token: str, sockets: ExitStack
) -> None:
    cut = 'execserver_relay_closed_sockets_total{reason="slow_consumer"}'
    before = relay.metrics()[cut]
    slow = sockets.enter_context(RawClient(relay, box, client_token, receive_buffer=4096))
    slow.send(frames.resume("slow"))
    assert pair.executor.receive() == frames.resume("slow")
    frame = frames.data("slow", 0, bytes(200_000))
    slowest = 0.0

    for number in range(2000):
        if number % 20 == 0:
            asked = time.monotonic()
            pair.client.send(pair.frame_for_client())
            came = pair.executor.receive()
            if came == frames.reset("slow", "relay_peer_closed"):
                break
            assert came == pair.frame_for_client()
            slowest = max(slowest, time.monotonic() - asked)
        pair.executor.send(frame)

    assert relay.metrics()[cut] == before + 1
    assert pair.executor.receive() == pair.frame_for_client()
    assert slowest < 8
    assert pair.is_alive()


def test_a_client_that_floods_its_executor_is_held_back_itself(relay: RelayService, pair: Pair) -> None:
    frame = frames.data(pair.stream, 0, bytes(200_000))
    largest = 'execserver_relay_largest_queue_bytes{to="executor"}'
    stop = threading.Event()
    sent = 0

    def flood() -> None:
        nonlocal sent
        while not stop.is_set():
            pair.client.send(frame)
            sent += 1

    def stands_still() -> bool:
        before = sent
        return not stop.wait(0.3) and sent == before > 0

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        # The executor reads nothing.
        wait_until(lambda: stands_still() and relay.metrics()[largest] > 0)
        queued = relay.metrics()[largest]
    finally:
        stop.set()
        received = 0
        while flooding.is_alive() or received < sent:
            assert pair.executor.receive() == frame
            received += 1
        flooding.join()

    assert 0 < queued < (1 << 20) + 4 * MAX_FRAME_BYTES
    assert pair.is_alive()


# ------------------------------------------------------------------ tokens end


@pytest.mark.statement("R3")
def test_a_new_token_is_good_at_once_and_a_revoked_one_ends_its_sockets(
    relay: RelayService, sockets: ExitStack
) -> None:
    executor_token, client_token = relay.token("executor", "own"), relay.token("client", "own")
    pair = Pair(relay, "own", executor_token, client_token, sockets)

    relay.revoke(client_token)
    assert pair.client.closed_with() == 1008
    assert frames.decode(pair.executor.receive()).kind == "reset"
    assert connect(relay, "own", client_token).status == 401
    relay.revoke(executor_token)

    assert pair.executor.closed_with() == 1008
    assert refused(pair.executor.url)[0] == 410
    assert register(relay, "own", executor_token).status == 401


@pytest.mark.statement("R3")
def test_an_expired_token_ends_its_socket(relay: RelayService, sockets: ExitStack) -> None:
    token = relay.token("executor", "brief", flags=("--expires-in", "8"))
    executor = sockets.enter_context(RawExecutor(relay, "brief", token))

    assert executor.closed_with() == 1008
    assert register(relay, "brief", token).status == 401


# ------------------------------------------------------------------ what it shows


def test_metrics_count_what_passes(relay: RelayService, pair: Pair) -> None:
    before = relay.metrics()
    frame = pair.frame_for_client(bytes(1000))

    for _ in range(5):
        pair.executor.send(frame)
        assert pair.client.receive() == frame

    after = relay.metrics()
    assert after["execserver_relay_streams"] == before["execserver_relay_streams"] >= 1
    assert after["execserver_relay_environments_online"] >= 1
    for name, much in (("frames", 5), ("bytes", 5 * len(frame))):
        label = f'execserver_relay_{name}_total{{to="client"}}'
        assert after[label] - before[label] == much


def test_logs_hold_no_token_no_ticket_and_no_query(
    relay: RelayService, pair: Pair, executor_token: str, client_token: str
) -> None:
    tickets = [urlsplit(peer.url).query.removeprefix("ticket=") for peer in (pair.executor, pair.client)]
    authorization = pair.client.answer["harness_key_authorization"]

    relay.metrics()

    for secret in (executor_token, client_token, *tickets, authorization, "ticket="):
        assert secret not in relay.log
    assert relay.log_lines("client connected")


def test_the_log_names_the_peer_of_a_socket_that_has_ended(relay: RelayService, pair: Pair) -> None:
    path = urlsplit(pair.client.url).path

    pair.client.close()

    def ended() -> list[str]:
        return [line["peer"] for line in relay.log_lines("request") if line["path"] == path]

    wait_until(lambda: bool(ended()))
    assert all(peer.startswith("127.0.0.1:") for peer in ended())


def test_only_the_owner_can_use_the_state_folder(relay: RelayService, pair: Pair) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(relay.state).iterdir()}

    assert relay.state.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}, modes
    assert {"control.sock", "tokens.json", "relay.lock", "door.key"} <= modes.keys()
