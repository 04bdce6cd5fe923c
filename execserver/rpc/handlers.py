"""The interface of method handlers, and of the connection that calls them.

A handler takes a `Caller` and the decoded parameters, and returns the result, at once or as an awaitable. A
handler that could block gives the work to a thread and returns an awaitable. Errors are raised as
`execprotocol.errors.RpcError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from execserver.sessions.access import PeerProof
from execserver.sessions.session import Attachment, Session

T = TypeVar("T", bound="Closable")


class Closable(Protocol):
    """An object that a connection owns and closes at its end."""

    def close(self) -> None:
        """Release everything; called once, on the loop's thread."""


class Caller(Protocol):
    """The connection's side, called by handlers."""

    extensions: bool
    """Whether `initialize` asked for extension members."""

    peer_proof: PeerProof | None
    """How the peer is known; None for an unknown peer."""

    key_fingerprint: str | None
    """Of the key by which a relay's client has identified itself; None without a relay."""

    max_reply_bytes: int | None
    """The largest reply that the peer takes, or None."""

    @property
    def session(self) -> Session:
        """The session that the connection is attached to."""

    @property
    def attachment(self) -> Attachment:
        """The connection's event streams."""

    def attach(self, session: Session, *, resumed: bool, extensions: bool) -> None:
        """Attach the connection to a session: `initialize` succeeded."""

    async def wait_to_reply(self) -> None:
        """Wait until the peer has taken enough for another large reply."""

    async def wait_to_push(self) -> None:
        """Wait until one more piece of a stream may be sent. Pieces take turns with each other and with the
        output of processes.
        """

    def expect_next_poll(self) -> None:
        """Wait a moment for the next long poll: one is about to be answered."""

    def probe(self, timeout: float) -> None:
        """Drop the connection unless its peer answers in `timeout` seconds."""

    def finish(self) -> None:
        """Read no more, answer the messages that were read, and end the connection."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; do nothing once the connection is gone."""

    def own(self, kind: type[T], make: Callable[[], T]) -> T:
        """The connection's one object of this kind (file handles, a watch), made at the first use and closed
        with the connection.
        """


class Encoded(msgspec.Struct, frozen=True):
    """A result as JSON. `after` is called when the reply is queued, and begins work whose messages may not
    overtake the reply.

    `begun` marks the result of a request that began something which continues after the reply. Its `after` is
    called even if there is no reply, and it is never refused for the size of other replies.

    `rest` follows `json`: pieces that are too large to be joined and are sent uncopied.
    """

    json: bytes
    after: Callable[[], None] | None = None
    begun: bool = False
    rest: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the whole result."""
        return len(self.json) + sum(map(len, self.rest))


class StreamedResult(msgspec.Struct, frozen=True):
    """A result that is too large for one piece: `head`, then the pieces, then `tail` are its JSON.

    Only the reading of the source may still fail. The connection is dropped then, because half of a message
    cannot be taken back.

    `size` is the bytes of all pieces; they may turn out fewer, never more.
    """

    head: bytes
    pieces: AsyncGenerator[bytes, None]
    tail: bytes
    size: int


Result = Mapping[str, Any] | Encoded | StreamedResult
"""The result of a handler; most often a plain `dict`."""

Handler = Callable[[Caller, Any], Result | Awaitable[Result]]
Handlers = Mapping[str, Handler]
