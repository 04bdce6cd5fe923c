from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from execserver.supervisor.activation import listener_on, take_descriptors
from execserver.supervisor.listener import ListenError
from execserver.supervisor.listeners import requested


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_variables_of_another_process_are_removed_and_not_used() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "OTHER": "kept"}
    assert take_descriptors(environment) == []
    assert environment == {"OTHER": "kept"}


def test_without_variables_nothing_is_passed() -> None:
    assert take_descriptors({}) == []
    assert take_descriptors({"LISTEN_FDS": "1"}) == []


@pytest.mark.parametrize(
    ("family", "address", "url"),
    [
        (socket.AF_INET, ("127.0.0.1", 0), "ws://127.0.0.1:{port}"),
        (socket.AF_INET6, ("::1", 0), "ws://[::1]:{port}"),
    ],
)
def test_a_listening_tcp_socket_is_a_websocket_address(
    family: socket.AddressFamily, address: tuple[str, int], url: str
) -> None:
    with socket.create_server(address, family=family) as listening:
        listener = listener_on(os.dup(listening.fileno()), "web")
        assert (listener.kind, listener.url) == ("tcp", url.format(port=listening.getsockname()[1]))
        listener.bind()
        listener.close()
        listener.close()
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_a_listening_unix_socket_may_be_abstract(capfd: pytest.CaptureFixture[str]) -> None:
    name = f"activation-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen()
        with closing(listener_on(os.dup(listening.fileno()), "x")) as listener:
            assert (listener.kind, listener.url) == ("unix", f"unix://@{name}")
    assert capfd.readouterr().err == ""


def datagram(stack: ExitStack) -> int:
    return stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).fileno()


def packets(stack: ExitStack) -> int:
    listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    listening.bind(stack.enter_context(tempfile.TemporaryDirectory()) + "/s")
    listening.listen()
    return listening.fileno()


def bound_only(stack: ExitStack) -> int:
    idle = stack.enter_context(socket.socket(socket.AF_INET))
    idle.bind(("127.0.0.1", 0))
    return idle.fileno()


def connection(stack: ExitStack) -> int:
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    stack.enter_context(socket.create_connection(listening.getsockname()))
    return stack.enter_context(listening.accept()[0]).fileno()


def fifo(stack: ExitStack) -> int:
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "f"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    stack.callback(os.close, descriptor)
    return descriptor


def netlink(stack: ExitStack) -> int:
    return stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)).fileno()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (datagram, "a datagram socket"),
        (packets, "no stream socket"),
        (bound_only, "a socket that does not listen"),
        (connection, "an accepted connection"),
        (fifo, "no socket"),
        (netlink, f"a socket of address family {int(socket.AF_NETLINK)}"),
    ],
)
def test_everything_else_is_refused_by_number_and_name(
    make: Callable[[ExitStack], int], what: str, stack: ExitStack
) -> None:
    descriptor = os.dup(make(stack))
    stack.callback(lambda: os.close(descriptor) if what == "no socket" else None)
    with pytest.raises(ListenError) as refused:
        listener_on(descriptor, "door")
    assert f"descriptor {descriptor} (door), passed by the service manager, is {what};" in str(refused.value)
    assert "ListenStream= and Accept=no" in str(refused.value)
    assert refused.value.exit_code == 1


def test_the_default_is_used_only_when_nothing_is_passed_and_nothing_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        passed = listener_on(os.dup(listening.fileno()), "x")
        assert requested([], {"XDG_RUNTIME_DIR": "/x"}, [passed]) == [passed]
        both = requested(["--listen", "stdio"], {}, [passed])
        assert [listener.url for listener in both] == [passed.url, "stdio"]
        passed.close()


def test_passed_sockets_count_towards_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        passed = listener_on(os.dup(listening.fileno()), "x")
        many = [passed] * 64
        with pytest.raises(ListenError, match="65 listeners are asked for, at most 64"):
            requested(["--listen", "stdio"], {}, many)
        passed.close()
