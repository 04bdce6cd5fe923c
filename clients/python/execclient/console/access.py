"""Who may use a console: the link that counts once, and the keys of the tabs that used one.

A page of another origin, another user of this machine and a program in a sandbox can all reach a port of
loopback. So each connection presents a secret: the token of a link, which then no longer counts, or the key
that the tab got for it. Neither is ever in a URL that the browser sends, a cookie or a log: cookies of
127.0.0.1 go to every port of it, so that any other local server would get them.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque

SECRET_BYTES = 32
"""Of randomness, in a token or key: it cannot be guessed, whatever the number of attempts."""

MAX_KEYS = 64
"""Tabs that can be reloaded. Above it, the key that was given first no longer counts."""


class Access:
    """The token of the next link, and the keys that count."""

    def __init__(self) -> None:
        self._token = _secret()
        self._keys: deque[str] = deque(maxlen=MAX_KEYS)
        self._used = asyncio.Condition()

    @property
    def token(self) -> str:
        """The token that counts now."""
        return self._token

    async def redeem(self, token: str) -> str | None:
        """The key of a tab for the token of a link, which counts once; None for any other text."""
        if not _equal(token, self._token):
            return None
        self._token, key = _secret(), _secret()
        self._keys.append(key)
        async with self._used:
            self._used.notify_all()
        return key

    def knows(self, key: str) -> bool:
        """Whether this is the key of a tab."""
        # All of them are compared: the time then says nothing about which one was nearest.
        return sum([_equal(key, known) for known in self._keys]) > 0

    async def next_token(self, used: str) -> str:
        """Wait until this token was used; the token that counts then."""
        async with self._used:
            await self._used.wait_for(lambda: self._token != used)
        return self._token


def _secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())
