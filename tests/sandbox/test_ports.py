"""Servers in a sandbox with a network of its own, and streams to them: for root and an ordinary user."""

from __future__ import annotations

import os

from tests.sandbox.host import Host, Tree
from tests.sandbox.test_managed_network import managed
from tests.support.port_servers import ECHO, LISTEN, TALK, close_input, open_port, ports, stream_of
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Client, Process, path_uri

MIB = 1 << 20


def serve(client: Client, tree: Tree, then: str, address: str = "127.0.0.1") -> tuple[Process, int]:
    """A server in a sandbox of its own, and its port."""
    process = client.start(
        "python3", "-c", LISTEN + then, address, "0", cwd=path_uri(tree.ws), env=tree.env, **managed(tree)
    )
    return process, int(process.wait_output(b"\n").splitlines()[0])


def test_a_stream_reaches_the_server_in_its_namespace(anyones_host: Host) -> None:
    tree = anyones_host.tree()
    with anyones_host.server.connect() as client:
        process, port = serve(client, tree, ECHO)
        [entry] = ports(client)
        assert (entry["processId"], entry["port"], entry["sandboxed"]) == (process.id, port, True)
        assert os.stat(f"/proc/{entry['pid']}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
        stream = open_port(client, port)
        data = os.urandom(2 * MIB)
        for start in range(0, len(data), MIB):
            stream.write(data[start : start + MIB], str(start))
        stream.wait_output(lambda output: len(output) >= len(data))
        assert stream.output == data
        close_input(stream)
        assert stream.wait_closed().exit_code == 0


def test_both_ends_of_a_stream_into_a_sandbox_end_alone(anyones_host: Host) -> None:
    tree = anyones_host.tree()
    with anyones_host.server.connect() as client:
        process, port = serve(client, tree, TALK)
        stream = open_port(client, port)
        stream.wait_output(b"eof\n")
        assert stream_of(stream) == b"first"
        stream.write("inside", "1")
        close_input(stream)
        process.wait_output(b"heard inside")
        assert stream.wait_closed().exit_code == 0


def test_the_program_of_a_stream_stays_out_of_the_sandbox(anyones_host: Host) -> None:
    tree = anyones_host.tree()
    with anyones_host.server.connect() as client:
        _, port = serve(client, tree, ECHO)
        open_port(client, port)
        listed = client.call("process/list")["processes"]
        [pid] = [each["pid"] for each in listed if each["processId"] == "stream"]
        daemon = server_of(anyones_host.server.pid, PATIENCE)
        for kind in ("net", "user", "mnt", "pid"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/{daemon}/ns/{kind}")


def test_the_same_port_in_two_sandboxes_is_two_listeners(anyones_host: Host) -> None:
    tree = anyones_host.tree()
    answer = "while True: listener.accept()[0].sendall({!r})"
    with anyones_host.server.connect() as client:
        first, port = serve(client, tree, answer.format(b"first"))
        argv = ["python3", "-c", LISTEN + answer.format(b"second"), "127.0.0.1", str(port)]
        second = client.start(*argv, cwd=path_uri(tree.ws), env=tree.env, **managed(tree))
        second.wait_output(b"\n")
        error = client.refused("port/open", {"processId": "s", "port": port})
        assert "choose one by `ofProcess`" in error.message
        for number, (process, text) in enumerate(((first, b"first"), (second, b"second"))):
            stream = open_port(client, port, f"s{number}", ofProcess=process.id)
            stream.wait_output(text)


def test_the_proxy_of_a_sandbox_is_not_opened(host: Host, tree: Tree) -> None:
    with host.server.connect() as client:
        command = "import os, time; print(os.environ['http_proxy'], flush=True); time.sleep(600)"
        process = client.start("python3", "-c", command, cwd=path_uri(tree.ws), env=tree.env, **managed(tree))
        port = int(process.wait_output(b"\n").rpartition(b":")[2].strip(b"/\n"))
        assert ports(client) == [], "it listens in the namespace of the sandbox, and is not the command's"
        error = client.refused("port/open", {"processId": "s", "port": port})
        assert f"no process of the session listens on port {port}" in error.message
