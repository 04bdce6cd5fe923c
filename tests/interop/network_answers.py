"""What the network proxy of a server answers, as JSON on standard output: for `beside_stock.py`.

    unshare --net --mount python -m tests.interop.network_answers COMMAND

Runs in namespaces of its own, where some names have public addresses and others private ones, all of this
machine. What differs on purpose is not asked: requests in origin form, odd notations of addresses, and the
sentences for people.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.wire import Client, Json, spawn_stdio

PUBLIC, PUBLIC6 = "93.184.216.34", "2606:2800:220:1::34"
NAMES = f"""
127.0.0.1 localhost loop.test mixed.test
{PUBLIC} ok.test www.ok.test deep.www.ok.test two.test sub.two.test mixed.test
{PUBLIC6} six.test
10.1.2.3 private.test
169.254.169.254 metadata.test
"""
PROXY = {
    "enabled": True, "enableSocks5": True, "enableSocks5Udp": False, "allowUpstreamProxy": False,
    "dangerouslyAllowAllUnixSockets": False, "mode": "full", "domains": None, "unixSockets": None,
    "allowLocalBinding": False,
}  # fmt: skip
ALLOW, DENY = {"type": "allow"}, {"type": "deny", "reason": "the client says no"}
_SECONDS = 5.0
Act = Callable[[int, int], Any]


def main(command: str) -> None:
    """Ask a server, given as a command in one text, about everything."""
    folder = Path(tempfile.mkdtemp(prefix="network-answers-", dir=os.environ.get("ANSWERS_FOLDER")))
    try:
        _prepare(folder)
        os.environ["EXECSERVER_TEST_COMMAND"] = command
        home = folder / "home"
        home.mkdir()
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
        answers: Json = {}
        for name, (settings, further, answer, acts) in _cases().items():
            with spawn_stdio(env=env, cwd=folder) as client:
                case = _Case(client.handshake(), settings, further, answer)
                answers[name] = case.outcomes(acts)
        with spawn_stdio(env=env, cwd=folder) as client:
            answers["settings"] = _refusals(client.handshake())
        json.dump(answers, sys.stdout)
    finally:
        shutil.rmtree(folder)


def _prepare(folder: Path) -> None:
    commands = ["ip link set lo up", f"ip addr add {PUBLIC6}/128 dev lo nodad"]
    commands += [f"ip addr add {address}/32 dev lo" for address in (PUBLIC, "10.1.2.3", "169.254.169.254")]
    for path, text in {
        "/etc/hosts": NAMES,
        "/etc/resolv.conf": "nameserver 127.0.0.9\noptions timeout:1\n",
    }.items():
        copy = folder / Path(path).name
        copy.write_text(text)
        commands.append(f"mount --bind {copy} {os.path.realpath(path)}")
    for command in commands:
        subprocess.run(command.split(), check=True)
    for port in (80, 443, 8080):
        threading.Thread(target=_serve, args=(port,), daemon=True).start()


def _serve(port: int) -> None:
    """An origin: answers requests with what it was asked, other bytes with themselves."""
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        data = connection.recv(65536)
        if not data.split(b" ")[0].isupper() or b"HTTP/1." not in data:
            connection.sendall(b"echo " + data)
            return
        body = data.split(b"\r\n", 1)[0]
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        connection.sendall(head + (b"" if data.startswith(b"HEAD") else body))


# -- acts: each gives what a client of the proxy sees


def get(url: str, method: str = "GET", *headers: str) -> Act:
    """A plain request."""
    host = url.split("/")[2]
    lines = [f"{method} {url} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
    return raw("\r\n".join(lines).encode(), f"{method} {url} {headers}")


def raw(data: bytes, what: str = "") -> Act:
    """Bytes to the HTTP port: status, the headers that matter, body."""

    def act(http: int, socks: int) -> Any:
        with _connection(http) as connection:
            connection.sendall(data)
            return _response(connection)

    act.__name__ = what or repr(data)
    return act


def connect(target: str) -> Act:
    """A tunnel, and some bytes through it."""

    def act(http: int, socks: int) -> Any:
        with _connection(http) as connection:
            connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            status, error, body = _response(connection)
            if status != 200:
                return status, error, body
            connection.sendall(b"ping")
            return status, connection.recv(100).decode()

    act.__name__ = f"CONNECT {target}"
    return act


def socks5(host: str, port: int, kind: int = 3, command: int = 1) -> Act:
    """A SOCKS5 request, and some bytes through it."""

    def act(http: int, socks: int) -> Any:
        address = (
            bytes([len(host)]) + host.encode()
            if kind == 3
            else socket.inet_pton(socket.AF_INET if kind == 1 else socket.AF_INET6, host)
        )
        with _connection(socks) as connection:
            connection.sendall(b"\x05\x01\x00")
            connection.recv(2)
            connection.sendall(b"\x05" + bytes([command, 0, kind]) + address + port.to_bytes(2, "big"))
            reply = connection.recv(300)[:2].hex()
            if reply != "0500":
                return reply
            connection.sendall(b"ping")
            return reply, connection.recv(100).decode()

    act.__name__ = f"SOCKS {host} {port} {kind} {command}"
    return act


@contextmanager
def _connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), _SECONDS) as connection:
        yield connection


def _response(connection: socket.socket) -> tuple[int, str, Json]:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return 0, "", data.decode()
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    length = int(headers.get("content-length", "0"))
    while len(body) < length and (part := connection.recv(65536)):
        body += part
    status = int(lines[0].split()[1])
    return status, headers.get("x-proxy-error", ""), _comparable(status, body.decode())


def _comparable(status: int, body: str) -> Json:
    """A body without the sentence for people."""
    if status == 403 and body.startswith("{"):
        return {name: value for name, value in json.loads(body).items() if name != "message"}
    return "" if status in (400, 502) else body


# -- cases: settings, the client's answer, acts


def _cases() -> dict[str, tuple[Json, Json, Json, dict[str, Act]]]:
    local = [
        get("http://127.0.0.1/"), connect("127.0.0.1:443"), socks5("127.0.0.1", 80, 1), socks5("::1", 80, 4),
        get("http://localhost/"), get("http://10.1.2.3/"), get("http://loop.test/"), get("http://mixed.test/"),
        connect("private.test:443"), socks5("metadata.test", 80), get("http://missing.test/"),
    ]  # fmt: skip
    usual = [
        get("http://ok.test/x?y"), get("http://OK.Test./"), get("http://ok.test:8080/"),
        connect("ok.test:443"), socks5("ok.test", 443), get("http://www.ok.test/"), get("http://deep.www.ok.test/"),
        get("http://two.test/"), get(f"http://{PUBLIC}/"), connect(f"[{PUBLIC6}]:443"), socks5(PUBLIC, 80, 1),
        socks5(PUBLIC6, 80, 4), socks5("six.test", 80), get("http://ok.test/", "POST", "Content-Length: 0"),
    ]  # fmt: skip
    limited = [
        get("http://ok.test/"),
        get("http://ok.test/", "HEAD"),
        get("http://ok.test/", "OPTIONS"),
        get("http://ok.test/", "POST", "Content-Length: 0"),
        get("http://two.test/", "POST", "Content-Length: 0"),
        *(connect(target) for target in ("ok.test:443", "two.test:443")),
        *(socks5(*target) for target in (("ok.test", 443), ("ok.test", 80), ("two.test", 80))),
    ]
    shapes = [
        raw(b"GET http://ok.test/ HTTP/1.1\r\nHost: two.test\r\nConnection: close\r\n\r\n"),
        raw(b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test:81\r\nConnection: close\r\n\r\n"),
        raw(b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nHost: two.test\r\n\r\n"),
        raw(b"GET http://ok.test/\x00 HTTP/1.1\r\nHost: ok.test\r\n\r\n"),
        get("http://127.0.0.1:9/"),
        socks5("127.0.0.1", 9, 1),
        socks5("ok.test", 80, 3, 2),
        socks5("ok.test", 80, 3, 3),
    ]
    lists = {"ok.test": "allow"}
    wait = {"policyDecisionTimeoutMs": 2000}
    cases: dict[str, tuple[Json, Json, Json, list[Act]]] = {
        "nothing permitted": ({}, {}, ALLOW, [*usual, *local]),
        "one host": ({"domains": lists}, {}, ALLOW, [*usual, *local]),
        "its subdomains": ({"domains": {"*.ok.test": "allow"}}, {}, ALLOW, usual),
        "both": ({"domains": {"**.ok.test": "allow", "www.ok.test": "deny"}}, {}, ALLOW, usual),
        "everything": ({"domains": {"*": "allow", "two.test": "deny"}}, {}, ALLOW, [*usual, *local]),
        "local ones by name": (
            {"domains": {"127.0.0.1": "allow", "localhost": "allow", "loop.test": "allow"}}, {}, ALLOW, local
        ),
        "local binding": ({"domains": {"*": "allow"}, "allowLocalBinding": True}, {}, ALLOW, local[:10]),
        "limited": ({"domains": lists, "mode": "limited"}, {}, ALLOW, limited),
        "shapes": ({"domains": {"ok.test": "allow", "127.0.0.1": "allow"}}, {}, ALLOW, shapes),
        "asked and allowed": ({"domains": {"two.test": "deny"}}, wait, ALLOW, [*usual[3:8], *local]),
        "asked and denied": ({}, wait, DENY, usual[3:8]),
        "asked for a person": ({}, wait, {"type": "ask", "reason": "not_allowed"}, usual[3:8]),
        "asked without a reason": ({}, wait, {"type": "deny"}, usual[3:5]),
        "asked for an answer that is none": ({}, wait, {"type": "maybe"}, usual[3:5]),
        "asked and limited": ({"mode": "limited"}, wait, ALLOW, limited),
        "reviewed": ({"domains": {"*": "allow"}, "reviewDomains": ["ok.test"]}, wait, DENY, usual[3:8]),
    }  # fmt: skip
    return {
        name: (settings, further, answer, {act.__name__: act for act in acts})
        for name, (settings, further, answer, acts) in cases.items()
    }


class _Case:
    """A process with a proxy, on a connection of its own: answers may be kept for a session."""

    def __init__(self, client: Client, settings: Json, further: Json, answer: Json) -> None:
        self._client = client
        self._answer = answer
        self._answered = 0
        start = client.start_params(
            ["/bin/sh", "-c", "echo $HTTP_PROXY $ALL_PROXY; exec sleep 300"],
            networkProxy={"proxy": PROXY | settings, **further},
            env={"PATH": "/usr/bin:/bin"},
        )
        client.call("process/start", start)
        output = client.process(start["processId"]).wait_output(b"\n").decode()
        self._ports = [int(url.rpartition(":")[2]) for url in output.split()]

    def outcomes(self, acts: dict[str, Act]) -> Json:
        """What the command sees of each act, what the client was asked, and what was reported to it."""
        seen: Json = {}
        for name, act in acts.items():
            worker = threading.Thread(target=lambda name=name, act=act: seen.update({name: self._try(act)}))
            worker.start()
            while worker.is_alive():
                self._respond()
                worker.join(0.02)
        time.sleep(0.5)  # reports may follow what the command sees
        return {
            "seen": seen,
            "asked": [each["params"]["request"] for each in self._client.questions],
            "reported": [_report(each["params"]) for each in self._reports()],
        }

    def _reports(self) -> list[Json]:
        return [each for each in self._client.notifications if each["method"] == "network/policyDecision"]

    def _respond(self) -> None:
        for question in self._client.questions[self._answered :]:
            self._answered += 1
            self._client.respond(question["id"], result={"decision": self._answer})

    def _try(self, act: Act) -> Json:
        try:
            return act(self._ports[0], self._ports[1])
        except OSError as error:
            return type(error).__name__


def _report(event: Json) -> Json:
    """A report without what differs from run to run. A member that is null may be absent."""
    once = {"timestamp", "processId", "client"}
    return {name: value for name, value in event.items() if value is not None and name not in once}


def _refusals(client: Client) -> Json:
    """The errors for settings that are refused."""
    changes: list[Json] = [
        *({name: None} for name in PROXY if name not in {"domains", "unixSockets"}),
        {"enabled": False},
        {"mode": "x"},
        {"domains": {"a": "maybe"}},
        *({"domains": {pattern: "allow"}} for pattern in ("", "*.", "a/b", "[", "{a}.test")),
        *({"domains": {pattern: "deny"}} for pattern in ("*", "**.*")),
        {"domains": {"a": "none", " b.test ": "allow", "a:80": "allow", "*.*": "deny", "[::1]": "allow"}},
        {"unixSockets": {"/run/x": "deny"}},
        {"reviewDomains": ["*", "a.test"]},
        {"later": 1},
    ]
    answers = {}
    for number, change in enumerate(changes):
        start = client.start_params(["/bin/true"], networkProxy={"proxy": PROXY | change})
        reply = client.reply(client.request("process/start", start))
        answers[f"{number} {json.dumps(change)}"] = reply.get("error", {}).get("code", "started")
    return answers


if __name__ == "__main__":
    main(sys.argv[1])
