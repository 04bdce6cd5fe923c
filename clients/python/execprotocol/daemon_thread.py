"""Run blocking calls in daemon threads, look up host names, and find the causes of a network error.

A name server that does not answer blocks a caller for half a minute, a dead mount for ever. An event loop
waits for its threads when it closes, and the interpreter for those of `concurrent.futures`. Neither waits
for a daemon thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

ADDRESS_SECONDS = 3.0
"""For the connect to one address, if the host has further ones."""

Got = TypeVar("Got")
Given = ParamSpec("Given")

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""An item of `socket.getaddrinfo`."""


async def run_in_daemon_thread(
    function: Callable[Given, Got], *args: Given.args, **kwargs: Given.kwargs
) -> Got:
    """Call a function in a daemon thread, and return its result or raise its exception.

    A cancelled caller returns at once; the call goes on in its thread, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Got] = loop.create_future()

    def settle(result: Got | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop is closed

    threading.Thread(target=work, name=f"daemon: {getattr(function, '__name__', '')}", daemon=True).start()
    return await future


async def addresses(host: str, port: int) -> Sequence[AddressInfo]:
    """The TCP addresses of a host in the resolver's order, at least one.

    Raises:
        socket.gaierror: the host has no address, or is not a valid name.
    """
    try:
        # A literal address needs no look-up and no thread.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "a part of the name is empty or too long") from None
    except socket.gaierror:
        return await run_in_daemon_thread(_look_up, host, port)


def _look_up(host: str, port: int) -> Sequence[AddressInfo]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An error, the members of a group, and the cause or context of each, in that order.

    Libraries keep the system's error inside their own.
    """
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes_of(member)
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from causes_of(cause)
