"""The request head and its answer."""

from __future__ import annotations

import base64
from http import HTTPStatus

import pytest

from execserver.transports.authentication import Authenticator, CapabilityToken, NoAuthentication
from execserver.transports.http_upgrade import BadRequestError, Decision, accept_value, decide, parse_head

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HEADERS = {
    "Host": "127.0.0.1:4500",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}
UPGRADE = "GET / HTTP/1.1"
STRICT = CapabilityToken(bytes(32))


def answer(line: str = UPGRADE, *, strict: bool = False, unix: bool = False, **changes: str) -> Decision:
    return answer_to(line, changes, STRICT if strict else NoAuthentication(), unix)


def answer_to(
    line: str, changes: dict[str, str], authenticator: Authenticator | None = None, unix: bool = False
) -> Decision:
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value != "absent")]
    head = parse_head("\r\n".join(lines).encode("latin-1"))
    decision = decide(head, authenticator or NoAuthentication(), {"named.example"}, any_host=unix)
    assert isinstance(decision, Decision)
    return decision


def test_the_sample_of_the_specification_is_answered_right() -> None:
    assert accept_value(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    response = answer().response.decode()
    assert response.startswith("HTTP/1.1 101 Switching Protocols\r\n")
    assert "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in response
    assert response.endswith("\r\n\r\n")
    assert "protocol:" not in response.lower().replace("switching protocols", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"Connection": "keep-alive, Upgrade"},
        {"Connection": "upgrade", "Upgrade": "WebSocket"},
        {"Sec_WebSocket_Protocol": "chat", "Sec_WebSocket_Extensions": "permessage-deflate"},
        {"Host": "[::1]:80"},
        {"Host": "[::1]"},
        {"Host": "10.0.0.1"},
        {"Host": "NAMED.example.:4500"},
    ],
)
def test_upgrades_of_all_habits_succeed(changes: dict[str, str]) -> None:
    decision = answer_to(UPGRADE, changes)

    assert decision.upgraded
    assert b"extensions" not in decision.response.lower()


def test_a_query_is_ignored() -> None:
    assert answer("GET /?a=1 HTTP/1.1").upgraded


@pytest.mark.parametrize(
    ("line", "changes", "status"),
    [
        ("GET / HTTP/1.1", {"Connection": "keep-alive"}, 400),
        ("GET / HTTP/1.1", {"Upgrade": "absent"}, 400),
        ("GET / HTTP/1.1", {"Upgrade": "h2c"}, 400),
        ("POST / HTTP/1.1", {}, 400),
        ("GET / HTTP/1.0", {}, 400),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": "absent"}, 400),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": "AAAA"}, 400),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": "not base64 at all!!!"}, 400),
        ("GET / HTTP/1.1", {"Sec_WebSocket_Key": "\xe9" * 24}, 400),
        ("GET /x HTTP/1.1", {}, 404),
        ("GET //readyz HTTP/1.1", {}, 404),
        ("GET http://127.0.0.1/ HTTP/1.1", {}, 404),
        ("GET /readyz HTTP/1.1", {}, 200),
        ("GET /readyz?x HTTP/1.1", {}, 200),
        ("HEAD /readyz HTTP/1.0", {"Host": "absent"}, 200),
        ("PUT /readyz HTTP/1.1", {}, 405),
        ("GET / HTTP/1.1", {"Host": "absent"}, 403),
        ("GET / HTTP/1.1", {"Host": "rebound.example"}, 403),
        ("GET /readyz HTTP/1.1", {"Host": "rebound.example:80"}, 403),
        ("GET / HTTP/1.1", {"Host": "::1"}, 403),
        ("GET / HTTP/1.1", {"Origin": "http://127.0.0.1:4500"}, 403),
        ("GET /readyz HTTP/1.1", {"Origin": ""}, 403),
        ("GET /x HTTP/1.1", {"Origin": "null"}, 403),
    ],
)
def test_what_is_no_proper_upgrade_is_refused(line: str, changes: dict[str, str], status: int) -> None:
    decision = answer_to(line, changes)

    assert decision.status == status
    assert decision.response.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\ncontent-length: 0\r\n" in decision.response
    assert b"\r\nconnection: close\r\n" in decision.response
    assert decision.response.endswith(b"\r\n\r\n")


def test_another_version_is_told_ours() -> None:
    decision = answer(Sec_WebSocket_Version="8")

    assert decision.status is HTTPStatus.UPGRADE_REQUIRED
    assert b"\r\nsec-websocket-version: 13\r\n" in decision.response


def test_two_hosts_are_none() -> None:
    head = parse_head(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1")

    decision = decide(head, NoAuthentication(), ())
    assert isinstance(decision, Decision)
    assert decision.status is HTTPStatus.FORBIDDEN


def test_on_a_unix_socket_any_host_will_do_but_no_origin() -> None:
    assert answer(unix=True, Host="what.ever").upgraded
    assert answer(unix=True, Host="absent").upgraded
    assert answer(unix=True, Origin="x").status is HTTPStatus.FORBIDDEN


def test_credentials_are_asked_for_after_origin_and_path_and_before_the_upgrade() -> None:
    assert answer(strict=True, Authorization="Bearer x").response.endswith(
        b"\r\n\r\ninvalid websocket bearer token"
    )
    assert answer(strict=True, Origin="x").status is HTTPStatus.FORBIDDEN
    assert answer("GET /x HTTP/1.1", strict=True).status is HTTPStatus.NOT_FOUND
    assert answer("GET /readyz HTTP/1.1", strict=True).status is HTTPStatus.OK
    assert answer(strict=True, Upgrade="absent").status is HTTPStatus.UNAUTHORIZED
    head_only = answer("HEAD / HTTP/1.1", strict=True)
    assert head_only.status is HTTPStatus.UNAUTHORIZED
    assert head_only.response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /",
        b"GET / HTTP/2",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\n folded: line",
        b"GET / HTTP/1.1\r\nName : value",
        b"GET / HTTP/1.1\r\nname: a\nb",
        b"GET / HTTP/1.1\r\nname: a\0b",
        b"GET /\xe9 HTTP/1.1",
        base64.b64encode(b"x" * 300),
    ],
)
def test_what_is_no_head_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_head(data)
