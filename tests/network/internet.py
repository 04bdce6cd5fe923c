"""An internet of the tests' own: public and local addresses, names, and servers, in namespaces of their own.

    unshare --net --mount ... python -m tests.network.internet FOLDER

The program owns the addresses on the loopback device of its network namespace. The files in `/etc` of its
mount namespace make its name server the only one. It prints a JSON line when it serves, writes a line for
each arrival to FOLDER/arrivals, and ends with its standard input.

Each server answers with a secret, by which a client shows that it has reached it; those of the permitted
address have another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.network import packages
from tests.network.open_proxy import rest, serve_http, serve_socks

PERMITTED, DENIED, PRIVATE, METADATA = "93.184.216.34", "93.184.216.66", "10.1.2.3", "169.254.169.254"
PERMITTED_V6, DENIED_V6 = "2606:2800:220:1::34", "2606:2800:220:1::66"
LOCALS_V6 = ("fd00::3", "64:ff9b::a01:203", "2002:a01:203::1", "fe80::3")
ADDRESSES = (PERMITTED, DENIED, PRIVATE, METADATA, "100.64.0.1", PERMITTED_V6, DENIED_V6, *LOCALS_V6)

NAMES: dict[str, list[list[str]]] = {
    "ok.test": [[PERMITTED]],
    "evil.test": [[DENIED]],
    "evil6.test": [[DENIED_V6]],
    "xn--k-0tb.test": [[DENIED]],
    "private.test": [[PRIVATE]],
    "metadata.test": [[METADATA]],
    "loopback.test": [["127.0.0.1"]],
    "shared.test": [["100.64.0.1"]],
    "unspecified.test": [["0.0.0.0"]],
    "unique-local.test": [["fd00::3"]],
    "nat64.test": [["64:ff9b::a01:203"]],
    "6to4.test": [["2002:a01:203::1"]],
    "mapped.test": [["::ffff:10.1.2.3"]],
    "mixed.test": [[PRIVATE, PERMITTED]],
    "rebinding.test": [[PERMITTED], [PRIVATE]],
}
"""The answers for a name: the first for its first question, and so on; the last one stays. They live for no
time. A name below one of these has the same answers, and a count of its own."""

HTTP, HTTPS, ECHO, DNS, OPEN_HTTP, OPEN_SOCKS = 80, 443, 9999, 53, 3128, 1080
NAME_SERVER = "127.0.0.53"
ABSTRACT = "tests-internet"
"""The name of an abstract Unix socket, in the network namespace."""

_FILES = {
    "hosts": f"127.0.0.1 localhost\n::1 localhost\n{PRIVATE} hosts-file.test\n",
    "resolv.conf": f"nameserver {NAME_SERVER}\nsearch evil.test\noptions timeout:4 attempts:1\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


class Arrival(NamedTuple):
    """What a server got."""

    kind: str
    to: str
    """The address of the server, or its path."""

    data: str


class Internet:
    """The program, its namespaces, and what has arrived.

    Args:
        folder: for its files; its path is short, and every process may read it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = [sys.executable, "-m", "tests.network.internet", str(folder)]
        self._process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.end()
            raise RuntimeError("the internet of the tests does not start: see its messages")
        told: dict[str, str] = json.loads(line)
        self.denied_secret, self.permitted_secret = told["denied"], told["permitted"]

    @property
    def pid(self) -> int:
        """Of the program, which has the namespaces."""
        return self._process.pid

    @property
    def prefix(self) -> tuple[str, ...]:
        """A command that becomes another one, inside."""
        return ("nsenter", "--target", str(self.pid), "--net", "--mount")

    @property
    def authority(self) -> Path:
        """The certificate of the authority that all certificates are of."""
        return self.folder / "ca.pem"

    def arrivals(self) -> list[Arrival]:
        """All until now."""
        lines = (self.folder / "arrivals").read_text().splitlines()
        return [Arrival(*json.loads(line)) for line in lines]

    def end(self) -> None:
        """End the program, and with it the namespaces."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


# ------------------------------------------------------------------ the program


class Servers:
    """All servers. Arrivals are written at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.denied_secret, self.permitted_secret = secrets.token_hex(8), secrets.token_hex(8)
        self._arrivals = open(folder / "arrivals", "a", buffering=1)  # noqa: SIM115 - until the program ends
        self._questions: dict[str, int] = {}
        self._files = packages.site()

    def arrived(self, kind: str, to: str, data: bytes) -> None:
        self._arrivals.write(json.dumps([kind, to, data.decode("latin-1")]) + "\n")

    def _secret(self, to: str) -> str:
        return self.permitted_secret if to in (PERMITTED, PERMITTED_V6) else self.denied_secret

    async def web(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request of HTTP."""
        to = _address(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.arrived("http", to, head)
            method, _, rest = head.decode("latin-1").partition(" ")
            target = rest.partition(" ")[0]
            if "upgrade: websocket" in head.decode("latin-1").lower():
                writer.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
                )
                self.arrived("upgraded", to, await reader.read(4096))
                return
            place = target.partition("?to=")[2]
            host = next(
                (line[6:] for line in head.decode("latin-1").split("\r\n") if line[:6] == "Host: "), ""
            )
            body = packages.answer(self._files, target, host)
            if body is None:
                body = f"reached {self._secret(to)} by {method}\n".encode()
            status = f"302 Found\r\nLocation: {place}" if place else "200 OK"
            # Only pip looks at the type.
            kind = f"text/html\r\nConnection: close\r\nContent-Length: {len(body)}"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\r\n".encode())
            writer.write(b"" if method == "HEAD" else body)
            await writer.drain()
            if writer.can_write_eof():
                # What still comes is read: a close with unread bytes would discard the answer.
                writer.write_eof()
                await reader.read()
        writer.close()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the first bytes with the secret."""
        to = _address(writer)
        with contextlib.suppress(OSError):
            first = await reader.read(4096)
            self.arrived("stream", to, first + await rest(reader))
            writer.write(self._secret(to).encode())
            await writer.drain()
        writer.close()

    async def names(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve DNS over TCP."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self.name(await reader.readexactly(length))
            writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()
        writer.close()

    def name(self, question: bytes) -> bytes:
        """Answer a question for addresses; text records have the secret."""
        labels, position = [], 12
        while question[position]:
            labels.append(question[position + 1 : position + 1 + question[position]].decode("latin-1"))
            position += 1 + question[position]
        asked = question[12 : position + 5]
        (kind,) = struct.unpack("!H", asked[-4:-2])
        name = ".".join(labels).lower()
        self.arrived("name", NAME_SERVER, name.encode())
        known = next((each for each in NAMES if name == each or name.endswith(f".{each}")), None)
        records = [] if known is None else self._records(name, known, kind)
        status = 0x8183 if known is None else 0x8180
        head = question[:2] + struct.pack("!HHHHH", status, 1, len(records), 0, 0)
        return (
            head
            + asked
            + b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data for data in records)
        )

    def _records(self, name: str, known: str, kind: int) -> list[bytes]:
        if kind == 16:
            return [bytes([len(self.denied_secret)]) + self.denied_secret.encode()]
        if kind not in (1, 28):
            return []
        answers = NAMES[known]
        turn = self._questions.get(name, 0)
        if kind == 1:
            self._questions[name] = turn + 1
        family = socket.AF_INET if kind == 1 else socket.AF_INET6
        found = answers[min(turn, len(answers) - 1)]
        return [socket.inet_pton(family, each) for each in found if (":" in each) == (kind == 28)]

    async def serve(self) -> None:
        """Serve until standard input ends."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        for port, handler, context in (
            (HTTP, self.web, None),
            (HTTPS, self.web, tls),
            (ECHO, self.echo, None),
            (DNS, self.names, None),
            (OPEN_HTTP, serve_http, None),
            (OPEN_SOCKS, serve_socks, None),
        ):
            await asyncio.start_server(handler, ["0.0.0.0", "::"], port, ssl=context)
        for path in (str(self.folder / "socket"), f"\0{ABSTRACT}"):
            await asyncio.start_unix_server(self.echo, path)
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: _Datagrams(self, None), ("::", ECHO))  # of IPv4 too
        await loop.create_datagram_endpoint(lambda: _Datagrams(self, self.name), (NAME_SERVER, DNS))
        datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagrams.bind(str(self.folder / "datagrams"))
        datagrams.setblocking(False)
        await loop.create_datagram_endpoint(lambda: _Datagrams(self, None), sock=datagrams)
        given = socket.socket(socket.AF_UNIX)
        given.bind(str(self.folder / "descriptors"))
        given.listen()
        give = asyncio.create_task(_give_descriptors(given))
        # What a process outside has open: a connection to a denied server.
        held = socket.create_connection((DENIED, ECHO))
        for name in ("socket", "datagrams", "descriptors"):
            os.chmod(self.folder / name, 0o666)
        told = {"denied": self.denied_secret, "permitted": self.permitted_secret}
        (self.folder / "held").write_text(str(held.fileno()))
        print(json.dumps(told), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        give.cancel()
        # Connections of commands may still be open.
        os._exit(0)


async def _give_descriptors(listener: socket.socket) -> None:
    """Give each process that connects a connection to a denied server."""
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        client, _ = await loop.sock_accept(listener)
        with client, socket.create_connection((DENIED, ECHO)) as connection:
            socket.send_fds(client, [b"\0"], [connection.fileno()])


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, servers: Servers, answer: Any) -> None:
        self._servers, self._answer = servers, answer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if self._answer is None:
            self._servers.arrived("datagram", "", data)
        else:
            self._transport.sendto(self._answer(data), address)


def _address(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("sockname")
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else str(name)


def _certificates(folder: Path) -> None:
    """An authority, and a certificate for all names."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl is missing"
    names = ",".join(f"DNS:{name},DNS:*.{name}" for name in NAMES)
    (folder / "names").write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ca = ["-keyout", "ca.key", "-out", "ca.pem", "-x509", "-subj", "/CN=authority of the tests"]
    request = ["-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server of the tests"]
    sign = ["-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    for command in (
        [openssl, "req", *key, *ca],
        [openssl, "req", *key, *request],
        [openssl, "x509", *sign, "-out", "server.pem", "-extfile", "names"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def main(folder: Path) -> None:
    """Make the namespaces what they are to be, and serve."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in ADDRESSES:
        flags = ["nodad"] if ":" in address else []
        bits = 128 if ":" in address else 32
        subprocess.run(["ip", "address", "add", f"{address}/{bits}", "dev", "lo", *flags], check=True)
    for name, text in _FILES.items():
        (folder / name).write_text(text)
        subprocess.run(["mount", "--bind", str(folder / name), os.path.realpath(f"/etc/{name}")], check=True)
    _certificates(folder)
    asyncio.run(Servers(folder).serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
