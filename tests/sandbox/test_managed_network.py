"""A sandbox with a managed network: its network proxy is the only way out."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.sandbox.conftest import MakeHost
from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import DEADLINE, wait_for
from tests.sandbox.profiles import DISABLED, READ_ONLY, WORKSPACE_WITH_NETWORK, unrestricted
from tests.support.servers import server_of
from tests.support.wire import Json, Process, Server

PROXY: dict[str, Json] = {"enabled": True, "enableSocks5": True}

PERMISSIONS = {
    "restricted": READ_ONLY,
    "enabled": WORKSPACE_WITH_NETWORK,
    "unrestricted files": unrestricted("enabled"),
    "external": {"type": "external", "network": "enabled"},
    "disabled": DISABLED,
}


class Origin:
    """A web server of the host, on loopback."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 7\r\n\r\nreached"
                )

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    origin = Origin()
    yield origin
    origin.end()


def managed(tree: Tree, permissions: Json = READ_ONLY, **settings: Json) -> dict[str, Json]:
    """The members of a start in such a sandbox."""
    return {
        "sandbox": tree.context(permissions),
        "enforceManagedNetwork": True,
        "networkProxy": {"proxy": PROXY | settings},
    }


def network_programs(supervisor: int) -> list[psutil.Process]:
    """The forker and the proxies of a daemon, oldest first."""
    found = psutil.Process(supervisor).children(recursive=True)
    programs = [each for each in found if "execserver.network.program" in command_line(each)]
    return sorted(programs, key=lambda each: each.create_time())


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def proxies(host: Host) -> list[int]:
    """The pids of the proxies alone."""
    server = server_of(host.server.pid, DEADLINE)
    found = []
    for each in network_programs(host.server.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.ppid() != server:
                found.append(each.pid)
    return found


FETCH = "curl -s -m 10 -o /dev/null -w '%{http_code}\\n'"


@pytest.mark.parametrize("permissions", PERMISSIONS.values(), ids=PERMISSIONS.keys())
def test_the_proxy_answers_and_a_server_of_the_host_is_out_of_reach(
    anyones_host: Host, origin: Origin, permissions: Json
) -> None:
    tree = anyones_host.tree()
    url = f"http://127.0.0.1:{origin.port}/"
    script = f"{FETCH} --noproxy '*' {url}; {FETCH} {url}"
    confined = anyones_host.shell(tree, script, **managed(tree, permissions))
    assert confined.output == b"000\n403\n", confined
    free = anyones_host.shell(tree, script)
    assert free.output == b"200\n200\n", free


def test_a_host_that_is_permitted_is_reached_through_the_proxy_only(
    anyones_host: Host, origin: Origin
) -> None:
    tree = anyones_host.tree()
    url = f"http://127.0.0.1:{origin.port}/"
    by_name = url.replace("127.0.0.1", "localhost")
    ways = (url, f"-p {url}", f"-x $ALL_PROXY {url}", by_name, f"--noproxy '*' {url}")
    script = "; ".join(f"{FETCH} {way}" for way in ways)
    permitted = {"127.0.0.1": "allow", "localhost": "allow"}
    done = anyones_host.shell(tree, script, **managed(tree, domains=permitted))
    assert done.output == b"200\n200\n200\n200\n000\n", done


SOCKETS = """
import socket
kinds = {
    "tcp": (2, 1, 0), "tcp6": (10, 1, 6), "udp": (2, 2, 0), "udp6": (10, 2, 0), "raw": (2, 3, 1),
    "mptcp": (2, 1, 262), "netlink": (16, 3, 0), "unix": (1, 1, 0), "unix datagrams": (1, 2, 0),
}
for name, kind in kinds.items():
    try:
        socket.socket(*kind).close()
        print(name)
    except OSError:
        pass
"""


def test_only_tcp_sockets_can_be_made(host: Host, tree: Tree) -> None:
    confined = host.python(tree, SOCKETS, **managed(tree)).output.split(b"\n")[:-1]
    assert confined == [b"tcp", b"tcp6"]
    free = host.python(tree, SOCKETS).output.split(b"\n")[:-1]
    assert {b"udp", b"udp6", b"netlink", b"unix", b"unix datagrams"} < set(free)


OWN_SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    client = socket.create_connection(server.getsockname())
    server.accept()[0].sendall(b"from its own server")
    print(client.recv(99).decode())
one, other = socket.socketpair()
one.sendall(b"by a pair")
print(other.recv(99).decode())
"""


def test_a_command_uses_servers_of_its_own_and_socket_pairs(host: Host, tree: Tree) -> None:
    done = host.python(tree, OWN_SERVER, **managed(tree))
    assert done.output == b"from its own server\nby a pair\n", done


def test_two_commands_do_not_share_a_loopback(host: Host, tree: Tree) -> None:
    listening = host.start(
        tree,
        [
            "python3",
            "-uc",
            "import socket; s = socket.create_server(('127.0.0.1', 4321)); print('up'); s.accept()",
        ],
        **managed(tree),
    )
    listening.wait_output(b"up\n", DEADLINE)
    connect = "import socket; socket.create_connection(('127.0.0.1', 4321))"
    assert host.python(tree, connect, **managed(tree)).exit_code == 1
    listening.terminate()


@pytest.mark.parametrize("permissions", [READ_ONLY, DISABLED], ids=["restricted", "disabled"])
def test_processes_outside_which_have_the_network_are_not_seen(anyones_host: Host, permissions: Json) -> None:
    tree = anyones_host.tree()
    script = f"kill -0 {anyones_host.victim.pid} 2>/dev/null && echo seen"
    assert anyones_host.shell(tree, script, **managed(tree, permissions)).output == b""
    assert anyones_host.shell(tree, script).output == b"seen\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may have no control group for limits")
def test_a_command_with_limits_has_its_proxy_too(host: Host, tree: Tree) -> None:
    script = f"grep -c execserver /proc/self/cgroup; {FETCH} http://example.com/"
    proxy = {"networkProxy": {"proxy": PROXY}}
    for members in (proxy, managed(tree), managed(tree, DISABLED)):
        done = host.shell(tree, script, limits={"pids": 50}, **members)
        groups, status = done.output.split()
        assert int(groups) > 0
        assert status == b"403"


def test_files_stay_unlimited_if_only_the_network_is_managed(anyones_host: Host) -> None:
    tree = anyones_host.tree()
    done = anyones_host.shell(tree, f"echo x > {tree.out}/new", **managed(tree, DISABLED))
    assert (done.exit_code, (tree.out / "new").read_text()) == (0, "x\n"), done


UPGRADE = (
    "curl -s -o /dev/null -w '%{http_code}\\n' -H 'Connection: Upgrade' -H 'Upgrade: websocket' "
    "-H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='"
)


def test_a_permitted_host_is_no_way_to_a_daemon(anyones_host: Host) -> None:
    """A client of a daemon may run anything."""
    tree = anyones_host.tree()
    server = Server(
        "ws://127.0.0.1:0",
        env=anyones_host.env,
        cwd=anyones_host.base / "daemon",
        prefix=anyones_host.user.prefix,
    )
    try:
        script = f"{UPGRADE} -p http://127.0.0.1:{server.port}/ -m"
        confined = anyones_host.shell(tree, f"{script} 10", **managed(tree, domains={"127.0.0.1": "allow"}))
        assert b"101" not in confined.output, confined
        assert server.logs("connection refused")
        deadline = time.monotonic() + DEADLINE
        while (said := anyones_host.shell(tree, f"{script} 1").output) != b"101\n":
            assert time.monotonic() < deadline, said
    finally:
        assert server.stop() == 0


LOW_LIMIT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_RTTIME, (10**9, 10**9))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_without_ownership_tags_no_proxy_is_started(make_host: MakeHost) -> None:
    """Daemons would take it for a client, through which a confined command could run anything."""
    host = make_host(prefix=(sys.executable, "-c", LOW_LIMIT))
    tree = host.tree()
    advisory = {
        "sandbox": tree.context(WORKSPACE_WITH_NETWORK),
        "networkProxy": {"proxy": PROXY | {"domains": {"127.0.0.1": "allow"}}},
    }
    for members in (managed(tree), advisory):
        params = host.client.start_params(["/bin/touch", str(tree.out / "made")], **members)
        failure = host.client.refused("process/start", params)
        assert failure.code == -32600
        assert "RLIMIT_RTTIME" in failure.message
    assert not (tree.out / "made").exists()
    assert host.shell(tree, "echo confined", tree.context(READ_ONLY)).output == b"confined\n"


def test_an_upstream_proxy_that_cannot_be_used_is_named_before_anything_runs(make_host: MakeHost) -> None:
    host = make_host(env={"HTTP_PROXY": "https://user:secret@proxy.test"})
    tree = host.tree()
    params = host.client.start_params(
        ["/bin/touch", str(tree.out / "made")], **managed(tree, DISABLED, allowUpstreamProxy=True)
    )
    failure = host.client.refused("process/start", params)
    assert failure.code == -32600
    assert "HTTP_PROXY" in failure.message
    assert "secret" not in failure.message
    assert not (tree.out / "made").exists()
    assert host.shell(tree, "true", **managed(tree)).exit_code == 0


# -- the ends of proxies


def waiting(host: Host, tree: Tree, **settings: Json) -> Process:
    """A confined shell that runs each line that it reads."""
    process = host.start(tree, ["/bin/sh"], pipeStdin=True, **managed(tree, **settings))
    process.write("echo ready\n", "ready")
    process.wait_output(b"ready\n", DEADLINE)
    return process


def test_a_proxy_ends_with_its_command(anyones_host: Host) -> None:
    tree = anyones_host.tree()
    process = waiting(anyones_host, tree)
    assert len(proxies(anyones_host)) == 1
    process.terminate()
    process.wait_closed()
    wait_for(lambda: not proxies(anyones_host), "the end of the proxy")


def test_a_command_whose_proxy_is_killed_has_no_network_and_goes_on(host: Host, tree: Tree) -> None:
    process = waiting(host, tree)
    (proxy,) = proxies(host)
    os.kill(proxy, signal.SIGKILL)
    wait_for(lambda: not proxies(host), "the end of the proxy")
    process.write(f"{FETCH} http://example.com/\nexit 5\n", "fetch")
    process.wait_closed()
    assert (process.output, process.exit_code) == (b"ready\n000\n", 5)
    assert host.server.logs("a network proxy ended before its process")


def test_the_death_of_the_forker_ends_no_proxy_and_prevents_no_start(host: Host, tree: Tree) -> None:
    process = waiting(host, tree)
    (proxy,) = proxies(host)
    forker = psutil.Process(proxy).ppid()
    os.kill(forker, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(forker), "the end of the forker")
    process.write(f"{FETCH} http://example.com/\n", "fetch")
    process.wait_output(b"ready\n403\n", DEADLINE)
    assert host.shell(tree, f"{FETCH} http://example.com/", **managed(tree)).output == b"403\n"
    process.terminate()
    process.wait_closed()
    wait_for(lambda: not proxies(host), "the end of the proxies")


def test_a_command_whose_proxy_cannot_enter_its_sandbox_never_begins(make_host: MakeHost) -> None:
    """A proxy that hangs until it is killed, while the command waits at its gate."""
    host = make_host()
    tree = host.tree()
    waiting(host, tree).terminate()  # so that there is a forker
    wait_for(lambda: not proxies(host), "the end of the proxy")
    (forker,) = (each.pid for each in network_programs(host.server.pid))
    os.kill(forker, signal.SIGSTOP)
    process = host.start(tree, ["touch", str(tree.out / "made")], **managed(tree, DISABLED))
    os.kill(forker, signal.SIGKILL)
    process.wait_closed()
    read = process.read()
    assert read["failure"] == "failed to prepare process sandbox: the network proxy has ended"
    assert not (tree.out / "made").exists()


WITHOUT_SETNS = """
import os, sys
from execserver.sandbox.seccomp import ALLOW, REFUSE
from execserver.sandbox.seccomp_bpf import Assembler
from execserver.sandbox.seccomp_numbers import ARCHITECTURES
from execserver.sandbox.thread_limits import deny_new_privileges, install_filter
code = Assembler()
code.load(0)
code.if_equal(ARCHITECTURES[os.uname().machine].numbers["setns"], then="refuse")
code.leave(ALLOW)
code.label("refuse")
code.leave(REFUSE)
deny_new_privileges()
install_filter(code.assemble())
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_no_namespace_can_be_joined_the_command_does_not_begin_and_the_reason_is_told(
    make_host: MakeHost,
) -> None:
    host = make_host(prefix=(sys.executable, "-c", WITHOUT_SETNS))
    tree = host.tree()
    process = host.start(tree, ["touch", str(tree.out / "made")], **managed(tree, DISABLED)).wait_closed()
    reason = "the sandbox's namespace cannot be joined: Operation not permitted"
    assert process.read()["failure"] == f"failed to prepare process sandbox: {reason}"
    assert not (tree.out / "made").exists()
    assert host.shell(tree, "echo confined", tree.context(READ_ONLY)).output == b"confined\n"


def test_the_end_of_a_service_ends_its_proxies(make_host: MakeHost) -> None:
    host = make_host()
    waiting(host, host.tree())
    found = [each.pid for each in network_programs(host.server.pid)]
    assert len(found) == 2
    host.client.close()
    assert host.server.stop() == 0
    assert not any(map(psutil.pid_exists, found))


def test_the_death_of_both_daemons_ends_the_proxies(make_host: MakeHost) -> None:
    host = make_host()
    waiting(host, host.tree())
    found = [each.pid for each in network_programs(host.server.pid)]
    server = server_of(host.server.pid, DEADLINE)
    # Stopped, it cannot begin to end the service when the supervisor dies.
    os.kill(server, signal.SIGSTOP)
    os.kill(host.server.pid, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not any(map(psutil.pid_exists, found)), "the end of the proxies")
