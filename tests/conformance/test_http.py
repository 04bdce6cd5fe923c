"""`http/request` and `http/request/bodyDelta`."""

from __future__ import annotations

import base64
import gzip
import threading
from typing import Any

import pytest

from tests.conformance.endpoint import Endpoint
from tests.integration.http.origin import (
    CHUNKED,
    LAST_CHUNK,
    Answer,
    Exchange,
    Origin,
    Serve,
    chunk,
    response,
)
from tests.support.wire import PATIENCE, Client, Json, ReplyError, at_most, decode, encode

MAX_BODY = 47 << 20
MAX_RUNNING, MAX_STREAMS = 64, 128


@pytest.fixture
def echo(serve: Serve) -> Origin:
    """Answers everything with `hi`."""
    return serve(lambda exchange: exchange.send(response(b"hi")))


def params(url: str, /, **members: Any) -> dict[str, Json]:
    return {"method": "GET", "url": url, "requestId": "r"} | members


def fetch(client: Client, url: str, /, **members: Any) -> Json:
    return client.call("http/request", params(url, **members))


def refused(client: Client, url: str, /, **members: Any) -> ReplyError:
    return client.refused("http/request", params(url, **members))


def header(name: str, value: str, variable: str | None = None) -> dict[str, Json]:
    given: dict[str, Json] = {"name": name, "value": value}
    return given if variable is None else given | {"valueEnvVar": variable}


def frames(client: Client, request_id: str = "r") -> list[Json]:
    return [
        note["params"]
        for note in list(client.notifications)
        if note["method"] == "http/request/bodyDelta" and note["params"]["requestId"] == request_id
    ]


def wait_done(client: Client, request_id: str = "r") -> list[Json]:
    client.wait_until(
        lambda: any(frame["done"] for frame in frames(client, request_id)), what="the last frame"
    )
    return frames(client, request_id)


def body_of(stream: list[Json]) -> bytes:
    return b"".join(decode(frame["deltaBase64"]) for frame in stream)


# ------------------------------------------------------------------ the request


@pytest.mark.everywhere
@pytest.mark.statement("N1", "N2")
def test_response(client: Client, serve: Serve) -> None:
    origin = serve(
        lambda exchange: exchange.send(
            response(b"body", "404 Gone away", "X-B: 1", "Set-Cookie: a", "X-B:2 ")
        )
    )
    assert fetch(client, origin.url) == {
        "status": 404,
        "headers": [
            {"name": "x-b", "value": "1"},
            {"name": "set-cookie", "value": "a"},
            {"name": "x-b", "value": "2"},
            {"name": "content-length", "value": "4"},
        ],
        "bodyBase64": encode(b"body"),
    }


@pytest.mark.statement("N1")
@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (b"HTTP/1.1 204 No\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", 304, b""),
        (b"HTTP/1.1 999 Odd\r\nContent-Length: 1\r\n\r\nx", 999, b"x"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n" + response(b"x"), 200, b"x"),
        (CHUNKED + chunk(b"abc") + chunk(b"d") + b"0\r\nTrailer: 1\r\n\r\n", 200, b"abcd"),
    ],
    ids=["204", "304", "999", "until the end", "informational", "chunked"],
)
def test_every_kind_of_response(client: Client, serve: Serve, raw: bytes, status: int, body: bytes) -> None:
    result = fetch(client, serve(lambda exchange: exchange.send(raw)).url)
    assert (result["status"], decode(result["bodyBase64"])) == (status, body)


@pytest.mark.everywhere
@pytest.mark.statement("N3", "N4")
def test_request_goes_out_as_given(client: Client, echo: Origin) -> None:
    fetch(
        client,
        f"{echo.url}/x?y=1",
        method="pOsT",
        headers=[
            header("X-One", "1"),
            header("accept", "text/x"),
            header("x-ONE", " two\t"),
            header("e", ""),
        ],
        bodyBase64=encode(b"\0body"),
    )
    request = echo.next_request()
    assert request.line == "pOsT /x?y=1 HTTP/1.1"
    assert request.headers == [
        ("Host", echo.address),
        ("X-One", "1"),
        ("accept", "text/x"),
        ("x-ONE", "two"),
        ("e", ""),
        ("Content-Length", "5"),
    ]
    assert request.body == b"\0body"


@pytest.mark.statement("N4")
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
def test_nothing_else_is_added(client: Client, echo: Origin, method: str) -> None:
    fetch(client, echo.url, method=method, bodyBase64="")
    request = echo.next_request()
    assert request.headers == [("Host", echo.address), ("Accept", "*/*")]


@pytest.mark.statement("N4")
def test_credentials_of_the_url(client: Client, echo: Origin) -> None:
    url = echo.url.replace("://", "://us%40er:p%3aw@")
    fetch(client, url)
    expected = "Basic " + base64.b64encode(b"us@er:p:w").decode()
    assert echo.next_request().values("authorization") == [expected]
    fetch(client, url, headers=[header("authorization", "own")])
    assert echo.next_request().values("authorization") == ["own"]


@pytest.mark.statement("N4")
def test_cookies_are_not_kept(client: Client, serve: Serve) -> None:
    origin = serve(lambda exchange: exchange.send(response(b"", "200 OK", "Set-Cookie: a=b")))
    fetch(client, origin.url)
    fetch(client, origin.url)
    assert [request.values("cookie") for request in origin.requests] == [[], []]


@pytest.mark.statement("N5")
def test_encoded_body_stays_encoded(client: Client, serve: Serve) -> None:
    packed = gzip.compress(b"plain")
    origin = serve(lambda exchange: exchange.send(response(packed, "200 OK", "Content-Encoding: gzip")))
    assert decode(fetch(client, origin.url)["bodyBase64"]) == packed


@pytest.mark.statement("N6")
@pytest.mark.parametrize(
    ("spelled", "target"),
    [
        ("http://ADDRESS", "/"),
        ("  http://ADDRESS/a b/../c%20d?q=é#fragment\n", "/c%20d?q=%C3%A9"),
        ("HTTP:ADDRESS/x", "/x"),
        ("http://0x7f.1:PORT/", "/"),
        ("http://ADDRESS/?", "/?"),
    ],
)
def test_spellings_of_a_url(client: Client, echo: Origin, spelled: str, target: str) -> None:
    fetch(client, spelled.replace("ADDRESS", echo.address).replace("PORT", str(echo.port)))
    request = echo.next_request()
    assert request.target == target
    assert request.values("host") == [echo.address]


@pytest.mark.everywhere
@pytest.mark.statement("N7")
def test_header_from_the_environment(client: Client, echo: Origin) -> None:
    fetch(client, echo.url, headers=[header("x-p", "Bearer ", "SOME_TOKEN"), header("x-p", "", "PLAIN_TWO")])
    assert echo.next_request().values("x-p") == ["Bearer t", "also plain"]


PROTECTED = [
    "CODEX_ACCESS_TOKEN",
    "CODEX_API_KEY",
    "CODEX_CONNECTORS_TOKEN",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "CODEX_GUARDIAN_DECISIONS_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "NOTIFY_SOCKET",
    "CREDENTIALS_DIRECTORY",
    "EXECSERVER_ANYTHING",
]


@pytest.mark.statement("N8", "N10")
def test_variables_that_no_header_gets(endpoint: Endpoint, echo: Origin) -> None:
    secrets = dict.fromkeys(PROTECTED, "s3cret-value")
    odd = {"EMPTY_ONE": "", "ODD_ONE": "s3cret\nvalue", "execserver_small": "s3cret"}
    # systemd's own would make the daemon talk to it.
    del secrets["NOTIFY_SOCKET"]
    client = endpoint.private(env=secrets | odd).connect()
    names = [*PROTECTED, *(name.lower() for name in PROTECTED), *odd, "UNSET_ONE", "", "A=B"]
    for name in names:
        failure = refused(client, echo.url, headers=[header("x", "v", name)])
        assert failure.code == -32602, name
        assert "s3cret" not in failure.message
    assert echo.requests == []


@pytest.mark.everywhere
@pytest.mark.statement("N9", "N10")
def test_requests_that_cannot_be_made(client: Client, echo: Origin) -> None:
    wrong: list[dict[str, Json]] = [
        {"url": "not a url"},
        {"url": ""},
        {"url": "/x"},
        {"url": "ftp://x/"},
        {"url": "file:///etc/hostname"},
        {"url": "http://"},
        {"url": "http://x:99999/"},
        {"url": "http://exa mple/"},
        {"url": 5},
        {"method": "G T"},
        {"method": ""},
        {"method": "GET\r\nX: y"},
        {"method": "É"},
        {"headers": [header("a b", "s3cret")]},
        {"headers": [header("", "s3cret")]},
        {"headers": [header("a:", "s3cret")]},
        {"headers": [header("é", "s3cret")]},
        {"headers": [header("a", "s3cret\n")]},
        {"headers": [header("a", "s3cret\r\nb: c")]},
        {"headers": [header("a", "s3cret\x7f")]},
        {"headers": [header("a", "s3cret\0")]},
        {"headers": [{"name": "a"}]},
        {"headers": None},
        {"bodyBase64": "!!"},
        {"bodyBase64": encode(b"abc"), "headers": [header("content-length", "4")]},
        {"headers": [header("content-length", "4")]},
        {
            "bodyBase64": encode(b"a"),
            "headers": [header("Content-Length", "1"), header("content-length", "1")],
        },
        {"bodyBase64": encode(b"a"), "headers": [header("Transfer-Encoding", "gzip, chunked")]},
        {
            "bodyBase64": encode(b"a"),
            "headers": [header("Transfer-Encoding", "chunked"), header("Content-Length", "1")],
        },
        {"headers": [header("Host", "a"), header("host", "b")]},
        {"timeoutMs": -1},
        {"redirectPolicy": "maybe"},
        {"streamResponse": 1},
    ]
    for members in wrong:
        for streaming in ({}, {"streamResponse": True}):
            failure = client.refused("http/request", params(echo.url) | streaming | members)
            assert failure.code == -32602, members
            assert "s3cret" not in failure.message
    for name in ("method", "url", "requestId"):
        incomplete = {key: value for key, value in params(echo.url).items() if key != name}
        assert client.refused("http/request", incomplete).message == f"missing field `{name}`"
    assert echo.requests == []


@pytest.mark.statement("N3")
def test_body_in_chunked_coding(client: Client, serve: Serve) -> None:
    got: list[bytes] = []

    def take(exchange: Exchange) -> None:
        data = exchange.request.body
        while not data.endswith(LAST_CHUNK):
            data += exchange.connection.recv(1000)
        got.append(data)
        exchange.send(response())

    fetch(
        client,
        serve(take).url,
        method="POST",
        bodyBase64=encode(b"abc"),
        headers=[header("transfer-encoding", "chunked")],
    )
    assert got == [chunk(b"abc") + LAST_CHUNK]


# ------------------------------------------------------------------ failures


def close(exchange: Exchange) -> None:
    return


@pytest.mark.statement("N10", "N11", "N53")
@pytest.mark.parametrize(
    "answer",
    [
        close,
        Exchange.reset,
        lambda exchange: exchange.send(b"garbage\r\n\r\n"),
        lambda exchange: exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
        lambda exchange: exchange.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"
        ),
        lambda exchange: exchange.send(b"HTTP/1.1 200 OK\r\nX: " + b"v" * 200_000 + b"\r\n\r\n"),
    ],
    ids=["closed", "reset", "garbage", "bad length", "two lengths", "huge head"],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_no_response(client: Client, serve: Serve, answer: Answer, streaming: bool) -> None:
    failure = refused(client, f"{serve(answer).url}/path?key=s3cret", streamResponse=streaming)
    assert failure.code == -32603
    assert failure.message.startswith("http/request failed: ")
    assert "s3cret" not in failure.message
    assert frames(client) == []


@pytest.mark.everywhere
@pytest.mark.statement("N11")
def test_a_port_without_a_listener(client: Client, serve: Serve) -> None:
    origin = serve(close)
    origin.close()
    failure = refused(client, origin.url)
    assert failure.message == f"http/request failed: {origin.address}: Connection refused (os error 111)"
    failure = refused(client, "http://no-such-host.invalid/")
    assert failure.code == -32603
    assert failure.message.startswith(
        "http/request failed: no-such-host.invalid: its name cannot be resolved"
    )


BROKEN = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    CHUNKED + chunk(b"short"),
    CHUNKED + chunk(b"short") + b"zz\r\n",
]


@pytest.mark.everywhere
@pytest.mark.statement("N12", "N33")
@pytest.mark.parametrize("raw", BROKEN, ids=["cut", "cut between chunks", "bad chunk"])
def test_body_breaks(client: Client, serve: Serve, raw: bytes) -> None:
    origin = serve(lambda exchange: exchange.send(raw))
    failure = refused(client, origin.url)
    assert failure.code == -32603
    assert failure.message.startswith("failed to read http/request response body: ")
    assert fetch(client, origin.url, streamResponse=True)["status"] == 200
    stream = wait_done(client)
    assert body_of(stream) == b"short"
    assert stream[-1]["deltaBase64"] == ""
    assert isinstance(stream[-1]["error"], str)
    assert [frame["error"] for frame in stream[:-1]] == [None] * (len(stream) - 1)


def silent(exchange: Exchange) -> None:
    exchange.wait_client_gone()


def half(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    exchange.wait_client_gone()


def slow_redirect(exchange: Exchange) -> None:
    if exchange.path == "/":
        exchange.send(response(b"", "302 Found", "Location: /slow"))
    else:
        exchange.wait_client_gone()


@pytest.mark.everywhere
@pytest.mark.statement("N13")
def test_timeout(client: Client, serve: Serve) -> None:
    for answer in (silent, slow_redirect):
        message = refused(client, serve(answer).url, timeoutMs=200).message
        assert message == "http/request failed: timed out after 200 ms"
    assert refused(client, serve(silent).url, timeoutMs=200, streamResponse=True).code == -32603
    half_ms = 3000  # the head comes within it
    whole = client.request("http/request", params(serve(half).url, timeoutMs=half_ms, requestId="whole"))
    fetch(client, serve(half).url, timeoutMs=half_ms, streamResponse=True)
    message = client.failure(whole).message
    assert message == "failed to read http/request response body: timed out after 3000 ms"
    stream = wait_done(client)
    assert body_of(stream) == b"half"
    assert stream[-1]["error"] == "timed out after 3000 ms"


@pytest.mark.statement("N13")
def test_timeout_of_nothing_and_of_for_ever(client: Client, echo: Origin) -> None:
    for streaming in (False, True):
        failure = refused(client, echo.url, timeoutMs=0, streamResponse=streaming)
        assert failure.code == -32603
        assert failure.message.startswith("http/request failed: ")
    assert echo.accepted == 0
    assert fetch(client, echo.url, timeoutMs=2**64 - 1)["status"] == 200
    assert fetch(client, echo.url, timeoutMs=None)["status"] == 200


# ------------------------------------------------------------------ redirects


def redirecting(exchange: Exchange) -> None:
    """`/CODE/PLACE` redirects to `/PLACE`; everything else answers."""
    parts = exchange.path.split("/")
    if parts[1].isdigit():
        exchange.send(response(b"moved", f"{parts[1]} Moved", f"Location: /{parts[2]}"))
    else:
        exchange.send(response(b"there"))


@pytest.mark.everywhere
@pytest.mark.statement("N20")
def test_follow_or_stop(client: Client, serve: Serve) -> None:
    origin = serve(redirecting)
    for status in (301, 302, 303, 307, 308):
        assert decode(fetch(client, f"{origin.url}/{status}/x")["bodyBase64"]) == b"there"
        assert fetch(client, f"{origin.url}/{status}/x", redirectPolicy="follow")["status"] == 200
        stopped = fetch(client, f"{origin.url}/{status}/x", redirectPolicy="stop")
        assert (stopped["status"], decode(stopped["bodyBase64"])) == (status, b"moved")
    for status in (300, 304, 305):
        assert fetch(client, f"{origin.url}/{status}/x")["status"] == status


@pytest.mark.statement("N20")
@pytest.mark.parametrize("headers", [[], ["Location: http://"], ["Location: http://x:99999/"]])
def test_redirect_to_nowhere_is_the_result(client: Client, serve: Serve, headers: list[str]) -> None:
    origin = serve(lambda exchange: exchange.send(response(b"", "302 Found", *headers)))
    assert fetch(client, origin.url)["status"] == 302


@pytest.mark.statement("N21", "N23")
@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"), (302, "POST", "GET"), (303, "POST", "GET"), (307, "POST", "POST"),
        (308, "POST", "POST"), (301, "PUT", "PUT"), (302, "PUT", "PUT"), (303, "PUT", "GET"),
        (302, "HEAD", "HEAD"), (303, "HEAD", "HEAD"), (302, "ODD", "ODD"),
    ],
)  # fmt: skip
def test_method_and_body_after_a_redirect(
    client: Client, serve: Serve, status: int, method: str, then: str
) -> None:
    origin = serve(redirecting)
    body = b"" if method == "HEAD" else b"abc"
    fetch(
        client,
        f"{origin.url}/{status}/x?q",
        method=method,
        bodyBase64=encode(body),
        headers=[header("Authorization", "a"), header("Content-Type", "t/x"), header("X-K", "v")],
    )
    first, second = origin.next_request(), origin.next_request()
    kept = then == method
    assert second.line == f"{then} /x HTTP/1.1"
    assert (first.body, second.body) == (body, body if kept else b"")
    assert second.values("content-type") == (["t/x"] if kept else [])
    assert second.values("authorization") == ["a"]
    assert second.values("x-k") == ["v"]
    assert second.values("referer") == [f"{origin.url}/{status}/x?q"]


@pytest.mark.statement("N22", "N23")
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_secrets_do_not_go_to_another_origin(client: Client, serve: Serve, name: str) -> None:
    other = serve(lambda exchange: exchange.send(response(b"other")))
    location = f"http://{name}:{other.port}/x"
    origin = serve(lambda exchange: exchange.send(response(b"", "307 Moved", f"Location: {location}")))
    meant = ("Authorization", "Cookie", "Cookie2", "Proxy-Authorization", "WWW-Authenticate")
    fetch(
        client,
        f"{origin.url}/secret?path",
        headers=[*(header(field, "s") for field in meant), header("Host", "virtual"), header("X-K", "v")],
    )
    sent = origin.next_request()
    assert [sent.values(field) for field in meant] == [["s"]] * len(meant)
    assert sent.values("host") == ["virtual"]
    request = other.next_request()
    assert [request.values(field) for field in meant] == [[]] * len(meant)
    assert request.values("host") == [f"{name}:{other.port}"]
    assert request.values("x-k") == ["v"]
    assert request.values("referer") == [f"{origin.url}/"]


def countdown(exchange: Exchange) -> None:
    left = int(exchange.path[1:])
    if left:
        exchange.send(response(b"", "302 Found", f"Location: {left - 1}"))
    else:
        exchange.send(response(b"end"))


@pytest.mark.statement("N24")
def test_ten_redirects(client: Client, serve: Serve) -> None:
    origin = serve(countdown)
    assert decode(fetch(client, f"{origin.url}/10")["bodyBase64"]) == b"end"
    failure = refused(client, f"{origin.url}/11")
    assert (failure.code, failure.message) == (-32603, "http/request failed: too many redirects")


@pytest.mark.statement("N25")
def test_redirect_to_another_scheme(client: Client, serve: Serve) -> None:
    origin = serve(lambda exchange: exchange.send(response(b"", "302 Found", "Location: file:///etc/passwd")))
    failure = refused(client, origin.url)
    assert failure.code == -32603
    assert failure.message == "http/request failed: redirect target uses unsupported URL scheme: file"


# ------------------------------------------------------------------ streams


@pytest.mark.everywhere
@pytest.mark.statement("N30", "N31", "N32", "N33")
def test_stream(client: Client, serve: Serve) -> None:
    go_on = threading.Semaphore(0)

    def answer(exchange: Exchange) -> None:
        exchange.send(CHUNKED)
        for number in range(3):
            exchange.send(chunk(b"part %d" % number))
            go_on.acquire(timeout=20)
        exchange.send(LAST_CHUNK)

    result = fetch(client, serve(answer).url, streamResponse=True)
    assert result == {
        "status": 200,
        "headers": [{"name": "transfer-encoding", "value": "chunked"}],
        "bodyBase64": "",
    }
    for number in range(3):
        # Each part arrives while the server waits.
        client.wait_until(lambda count=number + 1: len(frames(client)) == count, what="a frame")  # type: ignore[misc]
        go_on.release()
    assert wait_done(client) == [
        {"requestId": "r", "seq": 1, "deltaBase64": encode(b"part 0"), "done": False, "error": None},
        {"requestId": "r", "seq": 2, "deltaBase64": encode(b"part 1"), "done": False, "error": None},
        {"requestId": "r", "seq": 3, "deltaBase64": encode(b"part 2"), "done": False, "error": None},
        {"requestId": "r", "seq": 4, "deltaBase64": "", "done": True, "error": None},
    ]


@pytest.mark.everywhere
@pytest.mark.statement("N31", "N32")
def test_large_stream(client: Client, serve: Serve) -> None:
    body = bytes(range(256)) * (20 << 12)
    origin = serve(lambda exchange: exchange.send(response(body)))
    number = client.request("http/request", params(origin.url, streamResponse=True))
    stream = wait_done(client)
    assert client.result(number)["bodyBase64"] == ""
    replied = next(place for place, message in enumerate(client.received) if message.get("id") == number)
    event = next(place for place, message in enumerate(client.received) if "method" in message)
    assert replied < event
    assert body_of(stream) == body
    assert [frame["seq"] for frame in stream] == list(range(1, len(stream) + 1))
    assert all(1 <= len(decode(frame["deltaBase64"])) <= 1 << 20 for frame in stream[:-1])


@pytest.mark.statement("N30", "N33")
def test_stream_of_nothing(client: Client, serve: Serve) -> None:
    origin = serve(lambda exchange: exchange.send(b"HTTP/1.1 204 No\r\n\r\n"))
    assert fetch(client, origin.url, streamResponse=True)["status"] == 204
    last = {"requestId": "r", "seq": 1, "deltaBase64": "", "done": True, "error": None}
    assert wait_done(client) == [last]


@pytest.mark.everywhere
@pytest.mark.statement("N34")
def test_name_of_a_stream(client: Client, serve: Serve) -> None:
    finish = threading.Event()

    def answer(exchange: Exchange) -> None:
        exchange.send(CHUNKED)
        if exchange.path == "/held":
            finish.wait(20)
        exchange.send(LAST_CHUNK)

    origin = serve(answer)
    held = f"{origin.url}/held"
    first, second = client.pipeline(
        ("http/request", params(held, streamResponse=True)),
        ("http/request", params(held, streamResponse=True)),
    )
    text = "http/request streamResponse requestId `r` is already active"
    assert client.failure(second).message == text
    assert client.result(first)["status"] == 200
    for members in ({"url": "ftp://x"}, {"method": "G T"}, {"headers": [header("a b", "")]}, {}):
        failure = client.refused("http/request", params(held, streamResponse=True) | members)
        assert (failure.code, failure.message) == (-32602, text)
    assert fetch(client, origin.url)["status"] == 200
    assert fetch(client, origin.url, streamResponse=True, requestId="other")["status"] == 200
    finish.set()
    wait_done(client)
    assert fetch(client, held, streamResponse=True)["status"] == 200


@pytest.mark.statement("N34")
def test_name_is_free_after_a_failure(client: Client, serve: Serve) -> None:
    origin = serve(close)
    for _ in range(3):
        assert refused(client, origin.url, streamResponse=True).code == -32603


# ------------------------------------------------------------------ limits


@pytest.mark.everywhere
@pytest.mark.statement("N50")
def test_largest_body(client: Client, serve: Serve) -> None:
    origin = serve(lambda exchange: exchange.send(response(b"z" * int(exchange.path[1:]))))
    for size in (768 << 10, (768 << 10) + 1, MAX_BODY):
        assert decode(fetch(client, f"{origin.url}/{size}")["bodyBase64"]) == b"z" * size
    failure = refused(client, f"{origin.url}/{MAX_BODY + 1}")
    assert failure.code == -32603
    assert failure.message.startswith("failed to read http/request response body: larger than")


@pytest.mark.statement("N37", "N51")
def test_many_requests_at_once(client: Client, serve: Serve) -> None:
    together = threading.Barrier(MAX_RUNNING)

    def answer(exchange: Exchange) -> None:
        together.wait(20)
        exchange.send(response(exchange.path.encode()))

    origin = serve(answer)
    numbers = client.pipeline(
        *(("http/request", params(f"{origin.url}/{number}")) for number in range(2 * MAX_RUNNING))
    )
    with at_most(PATIENCE):
        client.call("environment/status")
    assert [decode(client.result(number)["bodyBase64"]) for number in numbers] == [
        b"/%d" % number for number in range(2 * MAX_RUNNING)
    ]


@pytest.mark.statement("N37", "N51")
def test_servers_that_never_answer_delay_nothing(endpoint: Endpoint, serve: Serve) -> None:
    client, bystander = endpoint.connect(), endpoint.connect()
    origin = serve(silent)
    count = MAX_RUNNING + 448 + 3
    client.pipeline(*(("http/request", params(f"{origin.url}/{number}")) for number in range(count)))
    for _ in range(MAX_RUNNING):
        origin.next_request()
    with at_most(PATIENCE):
        assert client.shell("echo here").wait_closed().output == b"here\n"
    errors = [message for message in client.received if "error" in message]
    assert [message["error"]["code"] for message in errors] == [-32603] * 3
    assert origin.accepted == MAX_RUNNING
    with at_most(PATIENCE):
        assert decode(fetch(bystander, serve(redirecting).url)["bodyBase64"]) == b"there"


@pytest.mark.statement("N52")
def test_most_streams(client: Client, serve: Serve) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.send(CHUNKED)
        exchange.wait_client_gone()

    origin = serve(answer)
    for number in range(MAX_STREAMS):
        fetch(client, origin.url, requestId=str(number), streamResponse=True)
    failure = refused(client, origin.url, streamResponse=True)
    assert failure.code == -32603
    assert "streams" in failure.message
    assert refused(client, origin.url, requestId="7", streamResponse=True).code == -32602


# ------------------------------------------------------------------ the connection


@pytest.mark.everywhere
@pytest.mark.statement("N36")
def test_end_of_the_connection_ends_its_requests(endpoint: Endpoint, serve: Serve) -> None:
    ended = threading.Semaphore(0)

    def answer(exchange: Exchange) -> None:
        if exchange.path == "/stream":
            exchange.send(CHUNKED + chunk(b"x"))
        exchange.wait_client_gone()
        ended.release()

    origin = serve(answer)
    client = endpoint.connect()
    fetch(client, f"{origin.url}/stream", streamResponse=True)
    client.request("http/request", params(f"{origin.url}/head"))
    origin.next_request(), origin.next_request()
    client.close()
    for _ in range(2):
        assert ended.acquire(timeout=PATIENCE)


@pytest.mark.transports("ws", "unix")
@pytest.mark.statement("N36")
def test_stream_is_not_resumed(endpoint: Endpoint, serve: Serve) -> None:
    gone = threading.Event()

    def answer(exchange: Exchange) -> None:
        exchange.send(CHUNKED + chunk(b"x"))
        exchange.wait_client_gone()
        gone.set()

    origin = serve(answer)
    client = endpoint.connect()
    fetch(client, origin.url, streamResponse=True)
    client.close()
    assert gone.wait(PATIENCE)
    again = endpoint.connect(resume=client.session_id)
    assert fetch(again, origin.url, streamResponse=True)["status"] == 200
    again.wait_until(lambda: frames(again), what="a frame of the new stream")
    assert frames(again)[0]["seq"] == 1
