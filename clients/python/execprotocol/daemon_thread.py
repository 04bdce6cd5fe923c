"""What may hang for good, in a thread that nobody has to wait for.

A name server that does not answer holds its asker for half a minute, a dead mount for ever. The threads of
an event loop are waited for when it closes, those of `concurrent.futures` when the interpreter ends. These
are not.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

ADDRESS_SECONDS = 3.0
"""For the connect to one address of a host that has further ones."""

Got = TypeVar("Got")
Given = ParamSpec("Given")

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` gives them."""


async def run_in_daemon_thread(
    function: Callable[Given, Got], *args: Given.args, **kwargs: Given.kwargs
) -> Got:
    """Call it in a thread of its own, and give what it gives or raise what it raises.

    Whoever is cancelled meanwhile goes at once; what was called goes on, and its end is nobody's concern.
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

    threading.Thread(target=work, name=f"aside: {getattr(function, '__name__', '')}", daemon=True).start()
    return await future


async def addresses(host: str, port: int) -> Sequence[AddressInfo]:
    """Where a host is to be reached by TCP, in the resolver's order; at least one.

    Raises:
        socket.gaierror: it has no address, or is no name.
    """
    try:
        # An address needs no asking, and no thread.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "a part of it is empty, or too long for a name") from None
    except socket.gaierror:
        return await run_in_daemon_thread(_asked, host, port)


def _asked(host: str, port: int) -> Sequence[AddressInfo]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, the members of a group, and what each was raised from or while, in that order."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes_of(member)
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from causes_of(cause)
