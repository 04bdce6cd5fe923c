from __future__ import annotations

import pytest

from execserver.http.request import TransferError, parse_url
from execserver.http.transport import Proxies, Proxy

P = Proxy("http", "p", 3128, None)


def proxy_of(url: str, **environment: str) -> Proxy | None:
    return Proxies(environment).of(parse_url(url))


@pytest.mark.parametrize("spelled", ["http://p:3128", "p:3128", " http://p:3128/ "])
def test_spellings_of_a_proxy(spelled: str) -> None:
    assert proxy_of("http://a", HTTP_PROXY=spelled) == P


def test_proxies_with_a_name_a_password_and_brackets() -> None:
    assert proxy_of("http://a", HTTP_PROXY="https://u:p%40@[::1]") == Proxy(
        "https", "::1", 443, (b"u", b"p@")
    )


def test_each_scheme_has_its_variable() -> None:
    assert proxy_of("https://a", HTTP_PROXY="p:3128") is None
    assert proxy_of("http://a", HTTPS_PROXY="p:3128") is None
    assert proxy_of("https://a", HTTPS_PROXY="p:3128", ALL_PROXY="q:1") == P
    assert proxy_of("https://a", HTTP_PROXY="q:1", ALL_PROXY="p:3128") == P


def test_an_empty_capital_one_hides_the_small_one() -> None:
    assert proxy_of("http://a", HTTP_PROXY="", http_proxy="p:3128") is None


@pytest.mark.parametrize("url", ["garbage://x", "http://", "::"])
def test_a_value_that_names_no_proxy_counts_for_none(url: str) -> None:
    assert proxy_of("http://a", HTTP_PROXY=url) is None


@pytest.mark.parametrize("url", ["socks5://x:1", "socks5h://x:1", "socks4://x:1"])
def test_socks_is_refused(url: str) -> None:
    with pytest.raises(TransferError, match="SOCKS"):
        proxy_of("http://a", HTTP_PROXY=url)


@pytest.mark.parametrize(
    ("entries", "host", "direct"),
    [
        ("b.example", "b.example", True),
        ("b.example", "a.b.example", True),
        ("B.example", "b.example", True),
        (".b.example", "b.example", True),
        (".b.example", "a.b.example", True),
        ("b.example", "xb.example", False),
        ("*.b.example", "a.b.example", False),
        ("x , b.example", "b.example", True),
        ("*", "a", True),
        ("*", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.0/8", "127.1.2.3", True),
        ("127.0.0.0/8", "128.0.0.1", False),
        ("::1", "[::1]", True),
        ("fe80::/10", "[fe80::1]", True),
        ("127.0.0.1:80", "127.0.0.1", False),
        ("", "a", False),
        (",,", "a", False),
    ],
)
def test_no_proxy(entries: str, host: str, direct: bool) -> None:
    assert proxy_of(f"http://{host}/", HTTP_PROXY="p:3128", NO_PROXY=entries) == (None if direct else P)
