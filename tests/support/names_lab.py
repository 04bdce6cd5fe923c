"""A proxy in a network namespace of its own, with a name server and public addresses that the test owns.

Run as a program inside a sandbox that `run` makes. It serves `A` records by the names below, and an origin on
port 80 of each address. It prints what came of each request as JSON.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from execprotocol.network import Decision, NetworkRequest
from execserver.network.rules import ProxyLimits
from tests.support.network_proxy import RunningProxy, Verdicts, proxy

PUBLIC, OTHER, PRIVATE = "93.184.216.34", "93.184.216.35", "10.1.2.3"
RECORDS: dict[str, list[list[str]]] = {
    "ok.test": [[PUBLIC]],
    "private.test": [[PRIVATE]],
    "metadata.test": [["169.254.169.254"]],
    "mixed.test": [[PUBLIC, PRIVATE]],
    "rebinding.test": [[PUBLIC], ["127.0.0.1"]],
    "two.test": [["93.1.1.1", PUBLIC]],
    "denied-address.test": [[OTHER]],
    "wiki.corp.test": [[PUBLIC]],
}
"""The answers for a name: the first for its first question, and so on; the last one stays. Packets to
`93.1.1.1` are lost, `silent.test` gets no answer, and other names do not exist."""

_LINKS = (PUBLIC, OTHER, PRIVATE, "169.254.169.254")
_SIOCSIFADDR, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x8914, 1
_RESOLV = "nameserver 127.0.0.1\nsearch corp.test\noptions timeout:5 attempts:1\n"


def run(folder: Path) -> dict[str, Any]:
    """Run the program in a sandbox, and return what it prints."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    files = {
        "hosts": "127.0.0.1 localhost loop.test\n",
        "resolv.conf": _RESOLV,
        "nsswitch.conf": "hosts: files dns\n",
    }
    binds: list[str] = []
    for name, text in files.items():
        (folder / name).write_text(text)
        binds += ["--ro-bind", str(folder / name), f"/etc/{name}"]
    sandbox = [bwrap, "--unshare-user", "--unshare-net", "--uid", "0", "--gid", "0", "--die-with-parent"]
    rights = ["--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_BIND_SERVICE"]
    view = ["--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--tmpfs", "/etc", *binds]
    program = [sys.executable, "-m", "tests.support.names_lab"]
    root = Path(__file__).parents[2]
    done = subprocess.run([*sandbox, *rights, *view, *program], capture_output=True, cwd=root, timeout=50)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.questions: list[str] = []
        """The names that were asked for an IPv4 address."""

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        labels, position = [], 12
        while data[position]:
            labels.append(data[position + 1 : position + 1 + data[position]].decode())
            position += 1 + data[position]
        question = data[12 : position + 5]
        name, is_v4 = ".".join(labels), question[-3] == 1
        addresses: list[str] = []
        if is_v4:
            answers = RECORDS.get(name, [[]])
            addresses = answers[min(self.questions.count(name), len(answers) - 1)]
            self.questions.append(name)
        if name == "silent.test":
            return
        head = data[:2] + struct.pack(
            "!HHHHH", 0x8180 if name in RECORDS else 0x8183, 1, len(addresses), 0, 0
        )
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(text) for text in addresses
        )
        self._transport.sendto(head + question + records, address)


def _own(addresses: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for number, text in enumerate(addresses):
            name = f"lo:{number}".encode()
            request = struct.pack("16sHH4s8s", name, socket.AF_INET, 0, socket.inet_aton(text), b"")
            fcntl.ioctl(control, _SIOCSIFADDR, request)
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH", name, _IFF_UP) + bytes(14))


async def _get(running: RunningProxy, host: str) -> dict[str, Any]:
    running.decisions.clear()
    got = await running.exchange(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return {
        "status": int(got.split(b" ", 2)[1]),
        "body": got.partition(b"\r\n\r\n")[2].decode(),
        "decisions": [(one.decision, one.source, one.reason) for one in running.decisions],
    }


async def _say_address(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    address = writer.get_extra_info("sockname")[0].encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(address) + address)
    await writer.drain()
    writer.close()


async def _main() -> dict[str, Any]:
    _own(_LINKS)
    names = _NameServer()
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: names, ("127.0.0.1", 53))
    await asyncio.start_server(_say_address, "0.0.0.0", 80)
    asked: list[str] = []

    async def allow(request: NetworkRequest) -> Decision:
        asked.append(request.host)
        return Decision(type="allow")

    everything: Verdicts = {"*": "allow", OTHER: "deny"}
    results: dict[str, Any] = {}
    async with proxy(everything, limits=ProxyLimits(connect_s=1.0)) as running:
        for name in (*RECORDS, "wiki", "loop.test", "missing.test", "silent.test", PUBLIC):
            results[name] = await _get(running, name)
    async with proxy(everything, allow_local_binding=True) as running:
        for name in ("private.test", "loop.test", "missing.test"):
            results[f"local {name}"] = await _get(running, name)
    results["questions"] = list(names.questions)
    names.questions.clear()
    async with proxy({"ok.test": "allow"}) as running:
        results["unlisted"] = await _get(running, "secret-in-a-name.test")
    results["questions about unlisted"] = list(names.questions)
    async with proxy(None, asks=allow) as running:
        for name in ("ok.test", "private.test", "missing.test"):
            results[f"asked {name}"] = await _get(running, name)
    results["asked"] = asked
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main())))
