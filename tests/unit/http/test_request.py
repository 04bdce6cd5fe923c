from __future__ import annotations

import pytest

from execprotocol.errors import InvalidParams
from execserver.http.request import UrlError, check_header_value, is_protected, make_request, parse_url


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("http://a", "a", 80, "/"),
        ("https://A.b:8443/x/../y?q#f", "a.b", 8443, "/y?q"),
        ("http://[::1]:8/", "[::1]", 8, "/"),
        ("http://münchen.example/ü", "xn--mnchen-3ya.example", 80, "/%C3%BC"),
        ("http://127.1/", "127.0.0.1", 80, "/"),
    ],
)
def test_urls(text: str, host: str, port: int, path: str) -> None:
    target = parse_url(text)
    assert (target.host, target.port, target.path) == (host, port, path)


@pytest.mark.parametrize(
    "text", ["", "x", "//x", "http://", "http://x:0/", "ftp://x", "javascript:1", "http://a b"]
)
def test_texts_that_are_no_url(text: str) -> None:
    with pytest.raises(UrlError):
        parse_url(text)


def test_authority_names_the_port_only_where_it_is_unusual() -> None:
    assert parse_url("http://a:80/").authority == "a"
    assert parse_url("https://a:443/").authority == "a"
    assert parse_url("https://a:80/").authority == "a:80"
    assert parse_url("http://[::1]:443/").authority == "[::1]:443"


def test_url_without_credentials_and_fragment() -> None:
    target = parse_url("http://user:secret@a/b?c#d")
    assert target.url == "http://a/b?c"
    assert target.credentials == (b"user", b"secret")


def test_value_of_any_bytes_from_the_environment() -> None:
    assert check_header_value("x", "a\udcff\t ") == b"a\xff"


def test_content_length_that_is_true_stays() -> None:
    request = make_request("PUT", parse_url("http://a"), [(b"content-LENGTH", b"2")], b"ab")
    assert request.headers == ((b"content-LENGTH", b"2"), (b"Accept", b"*/*"))


@pytest.mark.parametrize("length", [b"02", b"+2", b" 2", b"2, 2", b""])
def test_content_length_in_other_spellings_is_refused(length: bytes) -> None:
    with pytest.raises(InvalidParams, match="content-length"):
        make_request("PUT", parse_url("http://a"), [(b"Content-Length", length)], b"ab")


def test_protected_variables_in_any_spelling() -> None:
    assert is_protected("OPENAI_API_KEY")
    assert is_protected("openai_Api_key")
    assert not is_protected("MY_OPENAI_API_KEY")
