"""Python's uses of socket pairs and addresses: prints `name=errno` for each, 0 if it worked.

pairs.py STREAM_LISTENER DATAGRAM_LISTENER FREE_PATH
"""

from __future__ import annotations

import asyncio
import errno
import functools
import multiprocessing
import multiprocessing.reduction
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

LISTENER, DATAGRAMS, FREE = sys.argv[1:] if len(sys.argv) == 4 else ("", "", "")


def threads_of_asyncio() -> None:
    async def work() -> int:
        return await asyncio.to_thread(lambda: 5)

    assert asyncio.run(asyncio.wait_for(work(), 20)) == 5


def streams_of_asyncio() -> None:
    async def work() -> bytes:
        ours, theirs = socket.socketpair()
        (reader, _), (_, writer) = await asyncio.gather(
            asyncio.open_connection(sock=ours), asyncio.open_connection(sock=theirs)
        )
        writer.write(b"line\n")
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 20)

    assert asyncio.run(work()) == b"line\n"


def children_of_asyncio() -> None:
    async def work() -> bytes:
        child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return (await asyncio.wait_for(child.communicate(b"text"), 20))[0]

    assert asyncio.run(work()) == b"text"


def an_end_from_its_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with socket.socket(fileno=ours.detach()) as same, theirs:
        assert (same.family, same.type, same.getsockname()) == (socket.AF_UNIX, socket.SOCK_STREAM, "")
        same.settimeout(20)
        same.sendall(b"x")
        same.shutdown(socket.SHUT_WR)
        assert theirs.makefile("rb").read() == b"x"


def descriptors_over_a_pair() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [1])
        data, passed, _, _ = socket.recv_fds(theirs, 1, 1)
        assert data == b"x"
        os.close(passed[0])


def handles_over_a_connection() -> None:
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.reduction.send_handle(ours, 1, os.getpid())
    os.close(multiprocessing.reduction.recv_handle(theirs))


def a_pool_of_processes(method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map_async(abs, [-1, -2]).get(30) == [1, 2]


def a_queue_of_processes(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    queue: multiprocessing.Queue[int] = context.Queue()
    child = context.Process(target=queue.put, args=(7,))
    child.start()
    assert queue.get(timeout=30) == 7
    child.join()


def executors() -> None:
    with ProcessPoolExecutor(1) as processes, ThreadPoolExecutor(1) as threads:
        assert (processes.submit(abs, -3).result(30), threads.submit(abs, -4).result(30)) == (3, 4)


def a_child_on_a_pair() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        child = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        ours.settimeout(20)
        ours.sendall(b"text")
        ours.shutdown(socket.SHUT_WR)
        assert ours.makefile("rb").read() == b"text"
        assert child.wait(20) == 0


def a_manager() -> None:
    with multiprocessing.Manager() as manager:
        assert manager.list([1])[0] == 1


def a_server_of_asyncio() -> None:
    async def work() -> None:
        server = await asyncio.start_unix_server(lambda *_: None, FREE + "a")
        server.close()

    asyncio.run(work())


def a_datagram() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.sendto(b"x", DATAGRAMS)


def a_datagram_of_a_pair() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.sendmsg([b"x"], [], 0, DATAGRAMS)


def a_connection() -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(LISTENER)


ACTS: dict[str, Callable[[], object]] = {
    "threads of asyncio": threads_of_asyncio,
    "streams of asyncio": streams_of_asyncio,
    "children of asyncio": children_of_asyncio,
    "an end from its descriptor": an_end_from_its_descriptor,
    "descriptors over a pair": descriptors_over_a_pair,
    "handles over a connection": handles_over_a_connection,
    "a pool by fork": functools.partial(a_pool_of_processes, "fork"),
    "a pool by spawn": functools.partial(a_pool_of_processes, "spawn"),
    "a queue by fork": functools.partial(a_queue_of_processes, "fork"),
    "a queue by spawn": functools.partial(a_queue_of_processes, "spawn"),
    "executors": executors,
    "a child on a pair": a_child_on_a_pair,
    "to a connection": a_connection,
    "to a datagram": a_datagram,
    "to a datagram of a pair": a_datagram_of_a_pair,
    "to a server of asyncio": a_server_of_asyncio,
    "to a manager": a_manager,
    "to a pool by forkserver": functools.partial(a_pool_of_processes, "forkserver"),
}


def result(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or errno.EIO
    except EOFError:  # the child of a manager could not listen
        return errno.EPERM
    return 0


if __name__ == "__main__":
    for name, act in ACTS.items():
        print(f"{name}={result(act)}", flush=True)
