"""The credentials in force, which a reload replaces."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from execserver.transports.authentication import (
    AuthenticationOptions,
    Authenticator,
    CapabilityToken,
    ConfigurationError,
    Folder,
    authenticator_from,
)


class Credentials:
    """An `Authenticator` that reads its files again when asked. Who is connected stays so."""

    def __init__(self, options: AuthenticationOptions, base: Folder) -> None:
        """Read what the options name; arguments and errors are those of `authenticator_from`."""
        self._options = options
        self._base = base
        self._current = authenticator_from(options, base)
        # One thread: reloads end in the order they began. Its own: a dead mount must not keep the loop
        # from closing, which waits for the default threads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="credentials")

    @property
    def required(self) -> bool:
        """Whether credentials are asked for at all."""
        return self._current.required

    @property
    def has_short_token(self) -> bool:
        """Whether they are a token that can be guessed unless it is random."""
        return isinstance(self._current, CapabilityToken) and self._current.is_short

    def refusal(self, authorization: str | None) -> str | None:
        """Why the peer is refused (the body of the 401), or None when it may pass."""
        return self._current.refusal(authorization)

    async def reload(self) -> str | None:
        """Read the files again. When they cannot be used the old credentials stay in force.

        Returns:
            None, or why not; for the operator.
        """
        try:
            self._current = await self._read()
        except ConfigurationError as error:
            return str(error)
        return None

    async def fault(self) -> str | None:
        """Why the files could not be used as they are now; None when they could. Nothing is put in force."""
        try:
            await self._read()
        except ConfigurationError as error:
            return str(error)
        return None

    async def _read(self) -> Authenticator:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, authenticator_from, self._options, self._base)
