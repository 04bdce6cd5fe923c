"""A server for the tests of fd store and restarts: it does only what its clients ask for.

Run by its path: `fd_store_server.py serve --listen unix://PATH --plan FILE`. Each line from a client is a
JSON list, a command of `Commands` and its arguments; each is answered with one line. Each start takes the
first line of the plan, which says how it is to behave:

    serve           serve (also without a line)
    exit N          exit with N before `ready`
    kill            be killed before anything is read
    kill-amid N     be killed after N messages of the take-over
    wait            serve, but say `ready` only when the file FILE.go exists
    crash SECONDS   say `ready`, and end with exit code 70 after so long
    babble          say `ready`, and then what is no message
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from execserver.descendants import kill_descendants, set_own_tag, tag_value
from execserver.supervisor import fd_store_protocol
from execserver.supervisor.fd_store_client import EndedProcess, StoredSlot
from execserver.supervisor.server_channel import Hello, ServerChannel, open_supervisor_pidfd


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait(*descriptors: int, seconds: float | None = None) -> set[int]:
    """Those that are readable. Unlike select(2), with numbers of any size."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {each for each, _ in poll.poll(None if seconds is None else seconds * 1000)}


def content(descriptor: int) -> str:
    """The text in a file; of anything else, what it is."""
    link = os.readlink(f"/proc/self/fd/{descriptor}")
    return os.pread(descriptor, 4096, 0).decode() if "memfd" in link else link.partition(":")[0]


class Commands:
    """What a client may ask for."""

    def __init__(self, hello: Hello, channel: ServerChannel, handed: list[StoredSlot | EndedProcess]) -> None:
        self._fd_store = hello.fd_store
        self._hello = hello
        self._channel = channel
        self._handed = handed
        self._exits = [list(entry) for entry in handed if isinstance(entry, EndedProcess)]

    def pid(self) -> int:
        return os.getpid()

    def about(self) -> dict[str, Any]:
        return {"take_over": self._hello.take_over, "cwd": os.getcwd(), "environment": sorted(os.environ)}

    def keep(self, number: int, slot: int, *texts: str) -> None:
        files = [os.memfd_create("text") for _ in texts]
        for file, text in zip(files, texts, strict=True):
            os.write(file, text.encode())
        self._fd_store.keep(number, slot, files)
        for file in files:
            os.close(file)

    def keep_and_die(self, number: int, slot: int, *texts: str) -> None:
        self.keep(number, slot, *texts)
        die()

    def keep_many(self, count: int) -> float:
        """Returns how many milliseconds it took."""
        files = [os.memfd_create("text") for _ in range(3)]
        begin = time.monotonic()
        for number in range(1, count + 1):
            self._fd_store.keep(number, 1, files)
        return (time.monotonic() - begin) * 1000

    def run(self, number: int, program: str) -> int:
        reading, writing = os.pipe()
        set_own_tag(tag_value(self._hello.instance, number))
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", program],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)],
            setsid=True,
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
        )
        set_own_tag(tag_value(self._hello.instance))
        pidfd = os.pidfd_open(pid)
        self._fd_store.keep(number, fd_store_protocol.PROCESS, [pidfd, reading])
        for descriptor in (pidfd, reading, writing):
            os.close(descriptor)
        return pid

    def run_and_die(self, number: int, program: str) -> None:
        self.run(number, program)
        die()

    def wait_zombie(self, pid: int) -> None:
        """Until a child of ours has ended; it stays unreaped."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def release(self, number: int, urgent: bool = False) -> None:
        self._fd_store.release(number, urgent=urgent)

    def reaped(self, number: int) -> None:
        self._fd_store.reaped(number)

    def handed(self) -> dict[str, dict[str, list[str]]]:
        """What the take-over brought: number, slot, and what is in its descriptors."""
        result: dict[str, dict[str, list[str]]] = {}
        for entry in self._handed:
            if isinstance(entry, StoredSlot):
                slots = result.setdefault(str(entry.number), {})
                slots.setdefault(str(entry.slot), []).extend(map(content, entry.descriptors))
        return result

    def handed_count(self) -> list[int]:
        """Numbers and descriptors that the take-over brought."""
        kept = [entry for entry in self._handed if isinstance(entry, StoredSlot)]
        return [len({entry.number for entry in kept}), sum(len(entry.descriptors) for entry in kept)]

    def exits(self, wait_for: int = 0) -> list[list[int]]:
        """[number, status] of every exit that was told, as soon as there are so many."""
        while len(self._exits) < wait_for:
            wait(self._fd_store.fileno())
            self._take_exits()
        self._take_exits()
        return self._exits

    def limit_descriptors(self, supervisor: int, free: int) -> None:
        """Let the supervisor's table have so many free places."""
        import resource

        used = len(os.listdir(f"/proc/{supervisor}/fd"))
        hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (used + free, hard))

    def send(self, kind: str) -> None:
        self._channel.send({"type": kind})

    def upgrade(self) -> None:
        self._channel.send({"type": "upgrading"})
        os._exit(0)

    def exit(self, code: int) -> None:
        os._exit(code)

    def lose_leader(self) -> None:
        """The main thread ends, another one lives on."""
        import ctypes
        import threading

        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)

    def _take_exits(self) -> None:
        while (exited := self._fd_store.receive()) is not None:
            self._exits.append(list(exited))


def behaviour(plan: Path) -> str:
    lines = plan.read_text().splitlines()
    rest = plan.with_name("plan.rest")
    rest.write_text("\n".join(lines[1:]))
    rest.replace(plan)
    return lines[0] if lines else "serve"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--listen", action="append")
    parser.add_argument("--plan", type=Path)
    options = parser.parse_args()
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    doing, _, argument = behaviour(options.plan).partition(" ")
    if doing == "kill":
        die()
    channel, hello = ServerChannel.from_environment()
    supervisor = open_supervisor_pidfd(hello.supervisor_pid)
    if doing == "kill-amid":
        for _ in range(int(argument)):
            fd_store_protocol.receive(socket.socket(fileno=os.dup(hello.fd_store.fileno())))
        die()
    if doing == "exit":
        return int(argument)
    handed = hello.fd_store.take_over() if hello.take_over else []
    commands = Commands(hello, channel, handed)
    while doing == "wait" and not os.path.exists(f"{options.plan}.go"):
        if wait(supervisor, channel.fileno(), seconds=0.01):
            break
    channel.send({"type": "ready"})
    if doing == "crash":
        time.sleep(float(argument))
        return 70
    if doing == "babble":
        os.write(channel.fileno(), b"babble")
    listening = hello.listeners[0].socket
    assert listening is not None
    clients: list[socket.socket] = []
    while True:
        readable = wait(
            supervisor, channel.fileno(), listening.fileno(), *(each.fileno() for each in clients)
        )
        if supervisor in readable:
            kill_descendants(hello.instance, roots=[os.getpid()])
            return 1
        if channel.fileno() in readable:
            message = channel.receive()
            if message == {"type": "stop"}:
                return 0
            if message == {"type": "reload"} and os.path.exists(f"{options.plan}.reloads"):
                channel.send({"type": "reloaded", "error": None})
        for client in [client for client in clients if client.fileno() in readable]:
            line = client.recv(65536)
            if not line:
                clients.remove(client)
                client.close()
                continue
            name, *arguments = json.loads(line)
            answer = getattr(commands, name)(*arguments)
            client.sendall(json.dumps(answer).encode() + b"\n")
        if listening.fileno() in readable:
            clients.append(listening.accept()[0])


if __name__ == "__main__":
    sys.exit(main())
