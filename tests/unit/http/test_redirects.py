from __future__ import annotations

import pytest

from execserver.http.client import following
from execserver.http.request import HttpRequest, TransferError, make_request, parse_url


def request(url: str = "http://a/b/c?d", method: str = "GET", *headers: tuple[bytes, bytes]) -> HttpRequest:
    return make_request(method, parse_url(url), headers, b"")


def to(location: str, url: str = "http://a/b/c?d", *headers: tuple[bytes, bytes]) -> HttpRequest | None:
    return following(request(url, "GET", *headers), 302, [("x", "y"), ("location", location)])


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/x", "http://a/x"),
        ("x", "http://a/b/x"),
        ("../x", "http://a/x"),
        ("?x", "http://a/b/c?x"),
        ("//other/x", "http://other/x"),
        ("", "http://a/b/c?d"),
        ("https://a/x#y", "https://a/x"),
        (" HTTP://A/x", "http://a/x"),
    ],
)
def test_locations(location: str, url: str) -> None:
    subsequent = to(location)
    assert subsequent is not None
    assert subsequent.target.url == url


@pytest.mark.parametrize("location", ["http://", "http://x:99999/", "//["])
def test_locations_that_lead_nowhere(location: str) -> None:
    assert to(location) is None


def test_without_a_location_there_is_nothing_to_follow() -> None:
    assert following(request(), 302, [("content-type", "x")]) is None


@pytest.mark.parametrize("location", ["ftp://a/", "file:///etc/passwd", "javascript:alert(1)"])
def test_other_schemes(location: str) -> None:
    with pytest.raises(TransferError, match=location.partition(":")[0]):
        to(location)


def test_referer_of_the_caller_gives_way() -> None:
    subsequent = to("/x", "http://a/b", (b"REFERER", b"mine"))
    assert subsequent is not None
    assert [value for name, value in subsequent.headers if name.lower() == b"referer"] == [b"http://a/b"]


def test_no_referer_from_https_to_http() -> None:
    subsequent = to("http://a/x", "https://a/b", (b"Referer", b"mine"))
    assert subsequent is not None
    assert all(name.lower() != b"referer" for name, _ in subsequent.headers)


def test_from_http_to_https_is_another_origin() -> None:
    subsequent = to("https://a/x", "http://a/b", (b"Authorization", b"s"))
    assert subsequent is not None
    assert all(name.lower() != b"authorization" for name, _ in subsequent.headers)


def test_credentials_of_the_url_are_not_taken_along() -> None:
    subsequent = to("http://other/x", "http://user:secret@a/b")
    assert subsequent is not None
    assert all(b"secret" not in value and name != b"Authorization" for name, value in subsequent.headers)
