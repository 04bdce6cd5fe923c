"""The registry client against a real HTTP server that answers as the test says."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from execprotocol.relay.contract import (
    ConnectAnswer,
    ConnectRequest,
    PoolConnectRequest,
    PoolEntry,
    RegisterAnswer,
    RegisterRequest,
    StatusRequest,
    ValidateRequest,
    error_body,
)
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.registry_client import (
    RegistryClient,
    RegistryError,
    RegistryRefused,
    RegistryUnreachable,
)
from tests.integration.http.certificates import make_authority, server_context
from tests.support.wire import PATIENCE

EXECUTOR, HARNESS = KeyPair.generate().public, KeyPair.generate().public
VALIDATE = ValidateRequest("r1", HARNESS, "sealed")
UUID = "6b1f3f0e-0c5d-4d0a-9d6b-2f6f5a1c9e55"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def registry(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The base URL, with a prefix."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/some/base"
    finally:
        await runner.cleanup()


async def token() -> str:
    return "xrt_hidden"


def client(base: str, **arguments: object) -> RegistryClient:
    return RegistryClient(base, token, **arguments)  # type: ignore[arg-type]


def answering(body: object, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    return answer


def registered(url: str = "ws://127.0.0.1:9/x?ticket=t", environment_id: str = "box") -> dict[str, object]:
    return RegisterAnswer(environment_id, url, "r1").to_json()


async def test_a_registration_is_one_post_as_the_contract_has_it() -> None:
    seen: list[tuple[str, str, dict[str, str], bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen.append((request.method, request.raw_path, headers, await request.read()))
        return web.json_response(registered() | {"further": 1})

    async with registry(answer) as base:
        found = await client(base + "//").register("box", EXECUTOR)

    assert found == RegisterAnswer("box", "ws://127.0.0.1:9/x?ticket=t", "r1")
    [(method, path, headers, body)] = seen
    assert (method, path) == ("POST", "/some/base/cloud/environment/box/register")
    assert RegisterRequest.parse(body) == RegisterRequest(EXECUTOR)
    assert headers["authorization"] == "Bearer xrt_hidden"
    assert headers["content-type"] == "application/json"
    assert headers["host"] == base.removeprefix("http://").removesuffix("/some/base")


async def test_a_connect_gives_the_way_and_the_executors_key() -> None:
    expected = ConnectAnswer("box", "wss://elsewhere/x", "r1", EXECUTOR, "sealed")
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.json_response(expected.to_json())

    async with registry(answer) as base:
        found = await client(base).connect("box", HARNESS)

    assert found == expected
    assert ConnectRequest.parse(bodies[0]) == ConnectRequest(HARNESS)


async def test_an_executor_of_a_pool_is_that_of_the_key_in_the_answer() -> None:
    member = f"gpu--{EXECUTOR.fingerprint[:16]}"
    answers = [
        ConnectAnswer(environment_id, "wss://elsewhere/x", "r1", EXECUTOR, "sealed")
        for environment_id in (member, "gpu", f"gpu--{HARNESS.fingerprint[:16]}")
    ]
    seen: list[tuple[str, bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.raw_path, await request.read()))
        return web.json_response(answers[len(seen) - 1].to_json())

    async with registry(answer) as base:
        assert await client(base).connect_pool("gpu", HARNESS, {"zone": "eu"}) == answers[0]
        for _ in answers[1:]:
            with pytest.raises(RegistryError, match="answered for another environment"):
                await client(base).connect_pool("gpu", HARNESS, {})

    assert seen[0][0] == "/some/base/cloud/pool/gpu/connect"
    assert PoolConnectRequest.parse(seen[0][1]) == PoolConnectRequest(HARNESS, {"zone": "eu"})


async def test_a_member_registers_with_its_description_and_reports_its_load() -> None:
    entry, status = PoolEntry({"gpu": ""}, 4, "1.0"), StatusRequest("r1", 2, 3, draining=False)
    seen: list[tuple[str, bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.raw_path, await request.read()))
        return web.json_response(registered() if len(seen) == 1 else {})

    async with registry(answer) as base:
        await client(base).register("box", EXECUTOR, entry)
        await client(base).report("box", status)

    assert RegisterRequest.parse(seen[0][1]) == RegisterRequest(EXECUTOR, entry)
    assert seen[1] == ("/some/base/cloud/environment/box/status", json.dumps(status.to_json()).encode())


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize(("stream_id", "told"), [(UUID, UUID), ("a\r\nb: c", None)])
async def test_a_validation_is_what_the_registry_says(valid: bool, stream_id: str, told: str | None) -> None:
    seen: list[tuple[str | None, bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.headers.get("x-codex-noise-stream-id"), await request.read()))
        return web.json_response({"valid": valid})

    async with registry(answer) as base:
        assert await client(base).validate("box", VALIDATE, stream_id) is valid

    [(header, body)] = seen
    assert header == told
    assert ValidateRequest.parse(body) == VALIDATE


@pytest.mark.parametrize(
    ("status", "code", "retry"),
    [
        (409, "environment_offline", True),
        (409, "other", False),
        (408, "", True),
        (429, "", True),
        (500, "", True),
        (503, "registration_conflict", True),
        (400, "", False),
        (401, "", False),
        (403, "", False),
        (404, "", False),
        (204, "", False),
    ],
)
async def test_a_refusal_says_what_it_is_and_whether_it_may_pass(status: int, code: str, retry: bool) -> None:
    body = error_body(code, "not\nnow") if code else {}
    async with registry(answering(body, status)) as base:
        with pytest.raises(RegistryRefused) as raised:
            await client(base).register("box", EXECUTOR)

    error = raised.value
    assert (error.status, error.code, error.retry) == (status, code, retry)
    assert error.message == ("notnow" if code else "")
    assert f"refused it with {status}" in str(error)
    assert "xrt_hidden" not in str(error)


async def test_a_redirect_is_not_followed() -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with registry(answer) as base:
        with pytest.raises(RegistryRefused) as raised:
            await client(base).register("box", EXECUTOR)

    assert raised.value.status == 307
    assert not raised.value.retry
    assert len(paths) == 1


async def test_a_registry_that_repeats_our_token_does_not_bring_it_into_a_message() -> None:
    said = f"{'x' * 190} the token xrt_hidden is wrong"
    async with registry(answering(error_body("no_xrt_hidden", said), 401)) as base:
        with pytest.raises(RegistryRefused) as caught:
            await client(base).register("box", EXECUTOR)

    assert caught.value.code == "no_…"
    assert "xrt_h" not in str(caught.value)
    assert "xrt_h" not in caught.value.message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "must be a JSON object"),
        ({}, "security_profile"),
        (registered(environment_id="other"), "another environment than box"),
        (registered(url="http://x"), "`url` must be"),
        (registered(url="ws://"), "`url` must be"),
        (registered() | {"executor_registration_id": ""}, "executor_registration_id"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_that_names_the_field(
    body: object, text: str
) -> None:
    async with registry(answering(body)) as base:
        with pytest.raises(RegistryError, match=text):
            await client(base).register("box", EXECUTOR)


async def test_an_answer_without_end_is_given_up_at_64_kib() -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 4096)
                sent += 4096
        except ConnectionError:
            return response

    async with registry(answer) as base:
        with pytest.raises(RegistryError, match="more than 65536 bytes"):
            await client(base).register("box", EXECUTOR)

    assert sent < 32 << 20  # what sockets hold, and no more


async def test_a_registry_that_says_nothing_is_given_up_in_time() -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.set()
        await over.wait()
        return web.Response()

    async with registry(answer) as base:
        with pytest.raises(RegistryUnreachable, match=r"no answer to register within 1\.5 s"):
            await client(base, seconds=1.5).register("box", EXECUTOR)
        assert asked.is_set()
        over.set()


async def test_a_refused_connection_is_an_error_without_the_token() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RegistryUnreachable, match=r"cannot reach http.*Connection refused") as raised:
            await client(base).register("box", EXECUTOR)

    assert raised.value.refused
    assert not raised.value.untrusted
    assert "xrt_hidden" not in str(raised.value)


async def test_a_server_that_hangs_up_or_speaks_something_else_is_unreachable() -> None:
    for said in (b"", b"220 mail.example ESMTP\r\n"):

        def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = said
        ) -> Awaitable[None]:
            async def hang_up() -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(said)
                writer.close()

            return hang_up()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(RegistryUnreachable, match="cannot reach"):
                await client(f"http://127.0.0.1:{port}").connect("box", HARNESS)


async def test_the_token_is_asked_for_each_time_and_what_that_raises_is_passed_on() -> None:
    tokens = iter(["first", "second"])
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["authorization"])
        return web.json_response(registered())

    async def next_token() -> str:
        try:
            return next(tokens)
        except StopIteration:
            raise FileNotFoundError("the token file is gone") from None

    async with registry(answer) as base:
        asking = RegistryClient(base, next_token)
        await asking.register("box", EXECUTOR)
        await asking.register("box", EXECUTOR)
        with pytest.raises(FileNotFoundError, match="gone"):
            await asking.register("box", EXECUTOR)
        await asking.aclose()

    assert seen == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("wrong", ["two\r\nx: y", "ümlaut"])
async def test_a_token_that_is_no_header_is_refused_and_not_shown(wrong: str) -> None:
    async def bad() -> str:
        return wrong

    async with registry(answering(registered())) as base:
        with pytest.raises(RegistryError, match="characters that no HTTP header") as raised:
            await RegistryClient(base, bad).register("box", EXECUTOR)

    assert "two" not in str(raised.value)


async def test_a_request_that_is_cancelled_anywhere_leaves_no_connection_behind() -> None:
    async with registry(answering(registered())) as base:
        asking = client(base)
        await asking.register("box", EXECUTOR)
        before = len(os.listdir("/proc/self/fd"))
        finished = turns = 0
        while not finished:
            request = asyncio.create_task(asking.register("box", EXECUTOR))
            for _ in range(turns):
                await asyncio.sleep(0)
            finished = request.done()
            request.cancel()
            await asyncio.wait({request})
            turns += 1

        async with asyncio.timeout(PATIENCE):
            while len(os.listdir("/proc/self/fd")) > before:  # the server sees the ends a little later
                await asyncio.sleep(0.01)

    assert turns > 10


async def test_a_registry_that_says_nothing_in_the_tls_handshake_costs_no_connection(tmp_path: Path) -> None:
    accepted: list[asyncio.StreamReader] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(reader)
        await over.wait()
        writer.close()

    over = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    base = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        with pytest.raises(RegistryUnreachable, match="gave no answer"):
            await client(base, seconds=1.5).register("box", EXECUTOR)

        async with asyncio.timeout(PATIENCE):
            await accepted[0].read()  # to the end
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_requests_at_the_same_time_do_not_wait_for_each_other() -> None:
    waiting = 0
    all_there = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal waiting
        waiting += 1
        if waiting == 32:
            all_there.set()
        await all_there.wait()
        return web.json_response({"valid": True})

    async with registry(answer) as base:
        asking = client(base)
        answers = await asyncio.gather(*(asking.validate("box", VALIDATE, UUID) for _ in range(32)))

    assert answers == [True] * 32


async def test_over_tls_the_certificate_must_hold_and_so_must_the_scheme_of_the_socket(
    tmp_path: Path,
) -> None:
    authority = make_authority(tmp_path)
    trusting = ssl.create_default_context(cafile=authority)
    url = "wss://127.0.0.1:9/x"

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(registered(url))

    async with registry(answer, server_context(tmp_path)) as base:
        found = await client(base, ssl_context=trusting).register("box", EXECUTOR)
        assert found.url == url
        with pytest.raises(RegistryUnreachable, match=r"certificate of https.*does not hold") as raised:
            await client(base).register("box", EXECUTOR)
        assert raised.value.untrusted
        url = "ws://127.0.0.1:9/x"
        with pytest.raises(RegistryError, match="not encrypted"):
            await client(base, ssl_context=trusting).register("box", EXECUTOR)


async def test_the_systems_certificates_are_those_that_ssl_cert_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(make_authority(tmp_path)))

    async with registry(answering(registered("wss://h/x")), server_context(tmp_path)) as base:
        assert (await client(base).register("box", EXECUTOR)).registration_id == "r1"


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with registry(answering(registered())) as base:
        assert await client(base).register("box", EXECUTOR)


@pytest.mark.parametrize(
    "base",
    [
        *("ws://h", "h:80", "http://", "http://h:0", "http://h:x", "http://a b", "http://ü"),
        *("http://h?x=hidden", "http://me:hidden@h", "http://h#hidden"),
    ],
)
def test_a_base_url_is_http_or_https_and_has_nothing_but_host_port_and_path(base: str) -> None:
    with pytest.raises(ValueError, match="registry's URL") as raised:
        client(base)

    assert "hidden" not in str(raised.value)


def test_what_is_shown_of_the_registry_is_its_base() -> None:
    assert client("https://relay.example/base/").shown == "https://relay.example/base"
