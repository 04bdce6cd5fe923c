"""`execserver ports` and `execserver forward`, with a daemon of the test and with a relay."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from execclient import NetworkAccess, ReadOnly, connect
from tests.integration.commands.conftest import CommandLine, until
from tests.integration.commands.test_help_and_completion import complete
from tests.integration.relay.test_client_over_relay import Place, new_tokens
from tests.support import listener as program
from tests.support.relay_service import RelayService
from tests.support.servers import free_ports
from tests.support.wire import PATIENCE

PROGRAM = [sys.executable, str(Path(program.__file__))]

INSIDE: dict[str, Any] = {"sandbox": ReadOnly(), "network": NetworkAccess(allow=("example.com",))}
"""A sandbox with a network of its own."""


def listening(execserver: CommandLine, port: int = 0, **options: Any) -> tuple[str, int]:
    """The program of these tests, in a session without a client: its process ID and its port."""

    async def start() -> tuple[str, int]:
        async with connect(execserver.url, keep=True) as executor:
            process = await executor.start([*PROGRAM, "127.0.0.1", str(port)], **options)
            return process.id, int(await anext(process.lines()))

    return asyncio.run(start())


@contextmanager
def forwarding(execserver: CommandLine, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`execserver forward ARGUMENTS`, ended by SIGTERM."""
    with execserver.start("forward", *arguments, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_url(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def message(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().decode().strip()


def echoed(url: str, data: bytes = b"hello") -> bytes:
    """What the program at the URL sends back, to its end."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), PATIENCE) as connection:
        connection.sendall(b"echo\n" + data)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def test_ports_are_listed_with_the_processes_that_listen(execserver: CommandLine) -> None:
    inside, inner = listening(execserver, 4321, **INSIDE)
    outside, outer = listening(execserver)

    heading, *rows = [line.split() for line in execserver("ports").stdout.decode().splitlines()]
    assert heading == ["PORT", "ADDRESS", "NAME", "PID", "ID", "SANDBOX", "SESSION"]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        (str(inner), "127.0.0.1", inside),
        (str(outer), "127.0.0.1", outside),
    ]
    assert [row[5:-1] for row in rows] == [["yes"], []]
    entries = json.loads(execserver("ports", "--json").stdout)
    assert [(each["port"], each["processId"], each["sandboxed"]) for each in entries] == [
        (inner, inside, True),
        (outer, outside, False),
    ]


def test_a_port_is_forwarded_until_a_signal(execserver: CommandLine) -> None:
    process_id, port = listening(execserver)

    with forwarding(execserver, f"{port}:0") as process:
        url = read_url(process)
        assert f"(process {process_id} of session " in (said := message(process))
        assert said.endswith(f"listens on port {port}")
        assert echoed(url) == b"hellobye"
        assert echoed(url, b"again") == b"againbye"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        with pytest.raises(ConnectionRefusedError):
            echoed(url)

    # The streams have ended with it, and what it forwarded to goes on.
    assert [each.process_id for each in execserver.processes() if each.exit_code is None] == [process_id]


def test_the_local_port_may_be_chosen(execserver: CommandLine) -> None:
    _, port = listening(execserver)
    free = free_ports(1)[0]

    with forwarding(execserver, f"{port}:{free}") as process:
        assert read_url(process) == f"http://127.0.0.1:{free}/"
        taken = execserver("forward", f"{port}:{free}")
        assert (taken.returncode, taken.stdout) == (125, b"")
        assert b"in use" in taken.stderr


def test_it_says_when_a_process_begins_to_listen_and_when_none_does_any_more(execserver: CommandLine) -> None:
    port = free_ports(1)[0]
    with forwarding(execserver, f"{port}:0") as process:
        assert message(process) == f"execserver: no process listens on port {port} yet"
        first, _ = listening(execserver, port)
        assert f"process {first} " in message(process)
        url = read_url(process)
        assert echoed(url) == b"hellobye"

        execserver("kill", first)
        assert f"no longer listens on port {port}" in message(process)
        second, _ = listening(execserver, port)
        assert f"process {second} " in message(process)
        assert echoed(url) == b"hellobye"


def test_one_of_several_processes_has_to_be_chosen(execserver: CommandLine) -> None:
    first, port = listening(execserver, 4321, **INSIDE)
    second, _ = listening(execserver, 4321, **INSIDE)

    done = execserver("forward", str(port))
    assert done.returncode == 125
    assert b"choose with --process" in done.stderr
    assert first.encode() in done.stderr
    assert second.encode() in done.stderr
    with forwarding(execserver, f"{port}:0", "--process", second) as process:
        assert echoed(read_url(process)) == b"hellobye"
        assert f"process {second} " in message(process)


@pytest.mark.parametrize("ports", ["x", "0", "80:", "80:x", "65536", "80:65536", "80:90:100", "-1"])
def test_what_is_no_port_is_a_wrong_command_line(execserver: CommandLine, ports: str) -> None:
    done = execserver("forward", "--", ports)

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"PORT[:LOCAL]" in done.stderr


def test_ports_are_completed(execserver: CommandLine) -> None:
    _, port = listening(execserver)

    # The daemon has a second for its answer.
    until(lambda: complete(execserver, "forward", str(port)[:2]) == [str(port)])


def test_through_a_relay_the_ports_of_detached_commands_are_forwarded(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with RelayService(tmp_path / "relay") as relay:
        place = Place(relay, "box", new_tokens(relay, "box"))
        (tmp_path / "token").write_text(place.token)
        (tmp_path / "token").chmod(0o600)
        execserver = CommandLine(place.url, folder)
        token = ("--token-file", str(tmp_path / "token"))
        with place.executor():
            done = execserver("run", *token, "--detach", "--ttl", "1m", "--", *PROGRAM)
            process_id = done.stdout.decode().strip()
            until(lambda: execserver("logs", *token, process_id).stdout)
            port = int(execserver("logs", *token, process_id).stdout)

            [entry] = json.loads(execserver("ports", *token, "--json").stdout)
            assert (entry["port"], entry["processId"]) == (port, process_id)
            with forwarding(execserver, f"{port}:0", *token) as process:
                url = read_url(process)
                assert echoed(url) == b"hellobye"
                relay.kill()
                relay.start()
                assert echoed(url) == b"hellobye"
