"""Looks up hosts and connects to their addresses, within time limits."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from execprotocol.daemon_thread import addresses, run_in_daemon_thread
from execserver.network.addresses import Address, Host, address_of

_ATTEMPT_DELAY_S = 0.25
"""After which the next address is tried beside the one before (RFC 8305)."""

_LOOKUPS = 16
"""Look-ups at once, in threads that cannot be stopped."""

_MAX_ENDPOINTS = 16

_HOSTS_FILE = "/etc/hosts"


class Endpoint(NamedTuple):
    """A socket address, and its address as it is judged."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]
    address: Address


class ResolveError(Exception):
    """A host has no address. The text is for the command."""

    def __init__(self, host: Host, why: str) -> None:
        """Args:
        host: the host.
        why: the resolver's reason.
        """
        super().__init__(f"Cannot look up {host.text}: {why}.")


class Resolver:
    """Looks names up in threads, a limited number at once."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_LOOKUPS)

    async def resolve(
        self, host: Host, port: int, seconds: float, *, completes: bool = False
    ) -> list[Endpoint]:
        """The endpoints of a host, at least one and at most 16.

        Args:
            host: the host.
            port: for the endpoints.
            seconds: the time limit.
            completes: whether the resolver may append its search domains to the name. What a command asks
                for was judged by its name, which has to be the one that is looked up.

        Raises:
            ResolveError: the host has no address, or the resolver did not answer in time.
        """
        # A look-up that takes too long keeps its place, because its thread cannot be stopped.
        lookup = asyncio.ensure_future(self._look_up(host, port, completes))
        lookup.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            found = await asyncio.wait_for(asyncio.shield(lookup), seconds)
        except TimeoutError:
            raise ResolveError(host, f"no answer within {seconds:g} seconds") from None
        except OSError as error:
            raise ResolveError(host, error.strerror or str(error)) from None
        if not found:
            raise ResolveError(host, "it has no IP address")
        return found

    async def _look_up(self, host: Host, port: int, completes: bool) -> list[Endpoint]:
        async with self._places:
            name = host.text
            if host.address is None and not completes and not await run_in_daemon_thread(_is_of_host, name):
                name += "."  # a complete name, to which the resolver appends nothing
            found = await addresses(name, port)
        endpoints = [
            Endpoint(family, sockaddr, address_of(sockaddr[0]))
            for family, _, _, _, sockaddr in found
            if family in (socket.AF_INET, socket.AF_INET6)
        ]
        return list(dict.fromkeys(endpoints))[:_MAX_ENDPOINTS]


def _is_of_host(name: str) -> bool:
    """Whether a name is in the hosts file, in which no name has a final dot."""
    if name == "localhost":
        return True
    wanted = name.encode()
    try:
        with open(_HOSTS_FILE, "rb") as file:
            return any(wanted in line.partition(b"#")[0].lower().split()[1:] for line in file)
    except OSError:
        return False


async def connect(endpoints: Sequence[Endpoint], seconds: float) -> socket.socket:
    """Connect to the first endpoint that answers; each further one is tried a little later.

    Raises:
        OSError: no endpoint accepts, with the error of the first; `TimeoutError` after `seconds`.
    """
    attempts: set[asyncio.Task[socket.socket]] = set()
    first_error: BaseException | None = None
    waiting = list(endpoints)
    try:
        async with asyncio.timeout(seconds):
            while waiting or attempts:
                if waiting:
                    attempts.add(asyncio.ensure_future(_attempt(waiting.pop(0))))
                delay = _ATTEMPT_DELAY_S if waiting else None
                done, attempts = await asyncio.wait(
                    attempts, timeout=delay, return_when=asyncio.FIRST_COMPLETED
                )
                winners = [attempt.result() for attempt in done if attempt.exception() is None]
                for loser in winners[1:]:
                    loser.close()
                if winners:
                    return winners[0]
                for attempt in done:
                    error = attempt.exception()
                    if not isinstance(error, OSError):
                        attempt.result()
                    first_error = first_error or error
    except TimeoutError:
        raise TimeoutError(f"no connection within {seconds:g} seconds") from None
    finally:
        for attempt in attempts:
            attempt.cancel()
        for late in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(late, socket.socket):
                late.close()
    raise first_error or OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))


async def _attempt(endpoint: Endpoint) -> socket.socket:
    connection = socket.socket(endpoint.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(connection, endpoint.sockaddr)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        connection.close()
        # asyncio has its own text, with the address.
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO)) from None
    except BaseException:
        connection.close()
        raise
    return connection
