"""Pages beside the upgrade: who may see them, and how they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from http import HTTPStatus

import pytest

from execserver.transports.authentication import MISSING, Authenticator, CapabilityToken, NoAuthentication
from execserver.transports.http_upgrade import Decision, Head, HttpPage, PageContent, decide, parse_head
from tests.unit.transports.test_http_upgrade import HEADERS, STRICT

OPEN = NoAuthentication()
NO_HEADERS: Mapping[str, str] = {}


async def slowly() -> PageContent:
    return PageContent(b"made later")


PAGES = {
    "/open": HttpPage(lambda head: PageContent(b"for all"), public=True),
    "/closed": HttpPage(lambda head: PageContent(b"for some", "application/x-numbers")),
    "/failing": HttpPage(
        lambda head: PageContent(b"not now", status=HTTPStatus.SERVICE_UNAVAILABLE), public=True
    ),
    "/later": HttpPage(lambda head: slowly(), public=True),
    "/echo": HttpPage(lambda head: PageContent(head.target.encode())),
}


def ask(
    line: str,
    authenticator: Authenticator = OPEN,
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    upgrades: bool = True,
) -> Decision | Awaitable[Decision]:
    lines = [line, *(f"{name}: {value}" for name, value in {"Host": "127.0.0.1", **headers}.items())]
    head = parse_head("\r\n".join(lines).encode())
    return decide(head, authenticator, (), pages=PAGES, upgrades=upgrades)


def now(
    line: str,
    authenticator: Authenticator = OPEN,
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    upgrades: bool = True,
) -> Decision:
    decision = ask(line, authenticator, headers, upgrades=upgrades)
    assert isinstance(decision, Decision)
    return decision


def test_a_page_is_answered_whole() -> None:
    assert now("GET /closed HTTP/1.1").response == (
        b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n"
        b"content-type: application/x-numbers\r\n\r\nfor some"
    )


def test_head_has_the_headers_of_get_and_no_body() -> None:
    got, asked = now("GET /closed HTTP/1.1").response, now("HEAD /closed HTTP/1.1").response

    assert asked == got.removesuffix(b"for some")
    assert now("HEAD /closed HTTP/1.1", STRICT).response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get", "TRACE"])
def test_other_methods_are_told_what_is_allowed(method: str) -> None:
    decision = now(f"{method} /open HTTP/1.1")

    assert decision.status is HTTPStatus.METHOD_NOT_ALLOWED
    assert b"\r\nallow: GET, HEAD\r\n" in decision.response


def test_only_public_pages_are_shown_without_credentials() -> None:
    refused = now("GET /closed HTTP/1.1", STRICT)

    assert now("GET /open HTTP/1.1", STRICT).response.endswith(b"for all")
    assert refused.status is HTTPStatus.UNAUTHORIZED
    assert refused.response.endswith(b"\r\n\r\n" + MISSING.encode())
    assert now("POST /closed HTTP/1.1", STRICT).status is HTTPStatus.UNAUTHORIZED


def test_credentials_open_the_rest() -> None:
    token = CapabilityToken(bytes.fromhex("2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"))

    assert now("GET /closed HTTP/1.1", token, {"Authorization": "Bearer foo"}).status is HTTPStatus.OK
    assert (
        now("GET /closed HTTP/1.1", token, {"Authorization": "Bearer bar"}).status is HTTPStatus.UNAUTHORIZED
    )


@pytest.mark.parametrize("path", ["/open", "/closed", "/later", "/nowhere"])
@pytest.mark.parametrize("headers", [{"Origin": "http://127.0.0.1"}, {"Host": "rebound.example"}])
def test_browsers_and_foreign_names_see_no_page(path: str, headers: dict[str, str]) -> None:
    assert now(f"GET {path} HTTP/1.1", OPEN, headers).status is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("path", ["/", "/open/", "//open", "/OPEN", "/nowhere"])
def test_only_the_exact_path_is_a_page(path: str) -> None:
    assert now(f"GET {path} HTTP/1.1").status in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST)


def test_a_page_sees_the_request() -> None:
    assert now("GET /echo?x=1 HTTP/1.1").response.endswith(b"\r\n\r\n/echo?x=1")


def test_a_page_may_say_that_something_is_wrong() -> None:
    decision = now("GET /failing HTTP/1.1")

    assert decision.response.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert decision.response.endswith(b"not now")


async def test_a_page_may_take_its_time() -> None:
    decision = ask("GET /later HTTP/1.1")

    assert not isinstance(decision, Decision)
    assert (await decision).response.endswith(b"made later")


def test_while_stopping_upgrades_are_refused_and_pages_shown() -> None:
    upgrade = {name: value for name, value in HEADERS.items() if name != "Host"}

    assert now("GET / HTTP/1.1", OPEN, upgrade).upgraded
    assert now("GET / HTTP/1.1", OPEN, upgrade, upgrades=False).status is HTTPStatus.SERVICE_UNAVAILABLE
    assert now("GET / HTTP/1.1", STRICT, upgrade, upgrades=False).status is HTTPStatus.UNAUTHORIZED
    assert now("GET /open HTTP/1.1", upgrades=False).status is HTTPStatus.OK


def test_readyz_is_there_by_default() -> None:
    head: Head = parse_head(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1")

    decision = decide(head, STRICT, ())

    assert isinstance(decision, Decision)
    assert decision.response == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
