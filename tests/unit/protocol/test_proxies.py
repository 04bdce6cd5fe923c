from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from execprotocol.proxies import Proxies, Proxy, ProxyFailed

SECRET_URL = "http://us%40er:pass%3Aword@p:3128"


def proxy_of(url: str, explicit: str | None = None, **environment: str) -> Proxy | None:
    return Proxies(explicit, "--proxy", environment).of(urlsplit(url))


def shown(url: str, explicit: str | None = None, **environment: str) -> str | None:
    found = proxy_of(url, explicit, **environment)
    return None if found is None else found.shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://p:3128", "http://p:3128"),
        ("p:3128", "http://p:3128"),
        ("http://p/", "http://p:80"),
        ("https://p", "https://p:443"),
        ("http://[::1]:3128", "http://[::1]:3128"),
        ("socks5h://p", "socks5h://p:1080"),
        ("socks5://p:1", "socks5h://p:1"),
    ],
)
def test_spellings_of_a_proxy(given: str, expected: str) -> None:
    assert shown("https://a", given) == expected
    assert shown("https://a", HTTPS_PROXY=given) == expected


def test_credentials_are_decoded_for_the_proxy_and_never_shown() -> None:
    proxy = proxy_of("https://a", SECRET_URL)
    assert proxy is not None
    assert proxy.credentials == ("us@er", "pass:word")
    assert proxy.url == SECRET_URL
    for text in (str(proxy.unreachable("why")), str(proxy.refusal("407 No"))):
        assert "http://p:3128" in text
        assert "pass" not in text
    assert "pass" not in repr(proxy)


@pytest.mark.parametrize(
    ("url", "expected"),
    [("https://a", "https"), ("wss://a", "https"), ("http://a", "http"), ("ws://a", "http")],
)
def test_a_websocket_has_the_variable_of_its_http_scheme(url: str, expected: str) -> None:
    found = proxy_of(url, HTTP_PROXY="http:1", https_proxy="https:1")
    assert found is not None
    assert (found.host, found.source) == (expected, f"{expected.upper()}_PROXY")
    assert shown(url, ALL_PROXY="all:1") == "http://all:1"


@pytest.mark.parametrize("url", ["https://a.b.test", "wss://10.1.2.3", "https://[fd00::3]"])
def test_the_exceptions_are_separated_by_commas_or_spaces(url: str) -> None:
    entries = "other, b.test 10.0.0.0/8,fd00::/8"
    assert shown(url, HTTPS_PROXY="p:1") == "http://p:1"
    assert shown(url, HTTPS_PROXY="p:1", NO_PROXY=entries) is None
    assert shown(url, "p:1", NO_PROXY=entries) == "http://p:1", "an explicit proxy is for everything"


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1", "http://localhost", "wss://[::1]:2"])
def test_this_machine_has_no_proxy(url: str) -> None:
    assert proxy_of(url, ALL_PROXY="p:1") is None
    assert shown(url, "p:1") is None


def test_an_explicit_proxy_has_priority_over_the_variables() -> None:
    assert shown("https://a", "p:1", HTTPS_PROXY="q:1") == "http://p:1"
    assert shown("https://a", "", HTTPS_PROXY="q:1") == "http://q:1"


INVALID = [
    "ftp://secret@h",
    "http://",
    "http://secret@h:0",
    "http://secret@h/path",
    "http://h?secret",
    "h x:secret",
]


@pytest.mark.parametrize("url", INVALID)
def test_an_invalid_proxy_is_an_error_that_does_not_quote_it(url: str) -> None:
    with pytest.raises(ValueError, match="--proxy must be the URL of a proxy") as explicit:
        Proxies(url, "--proxy", {})
    with pytest.raises(ProxyFailed, match="HTTPS_PROXY must be the URL of a proxy") as variable:
        proxy_of("https://a", HTTPS_PROXY=url)
    assert "secret" not in f"{explicit.value}{variable.value}"
    assert proxy_of("http://a", HTTPS_PROXY=url) is None, "it is of no concern for another scheme"


@pytest.mark.parametrize("credentials", ["u" * 256 + ":secret", "u:" + "secret" * 43, "u:secr%C3%A9t"])
def test_credentials_that_socks5_cannot_carry_are_refused_at_once(credentials: str) -> None:
    with pytest.raises(ValueError, match="--proxy must have a user and a password of at most 255") as caught:
        Proxies(f"socks5h://{credentials}@p:1", "--proxy", {})
    assert "secr" not in str(caught.value)
    assert shown("https://a", f"http://{credentials}@p:1") == "http://p:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "407 Proxy Authentication Required",
            "wants credentials (407): give them in --proxy, as http://USER",
        ),
        ("HTTP proxy rejected connection with status 403", "refuses to connect to the host (403)"),
        ("504 Gateway Timeout", "cannot reach the host (504)"),
        ("Host unreachable", "opened no tunnel: Host unreachable"),
        ("", "opened no tunnel: it hung up"),
    ],
)
def test_a_refusal_says_what_to_change(text: str, expected: str) -> None:
    proxy = proxy_of("https://a", "p:1")
    assert proxy is not None
    assert expected in str(proxy.refusal(text))
