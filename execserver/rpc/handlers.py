"""The shape of a method handler, and what it may know of the connection that asked.

A handler takes a `Caller` and the decoded parameters, and gives the result: at once, or
as an awaitable. A handler that could block hands the work to a thread and returns an
awaitable. Errors are raised as `execprotocol.errors.RpcError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from execserver.sessions.access import PeerProof
from execserver.sessions.session import Attachment, Session

T = TypeVar("T", bound="Closable")


class Closable(Protocol):
    """Something that a connection owns and closes when it ends."""

    def close(self) -> None:
        """Let go; called once, on the loop's thread."""


class Caller(Protocol):
    """The connection that sent a request, as handlers see it."""

    extensions: bool
    """Whether `initialize` asked for extension members."""

    peer_proof: PeerProof | None
    """What is known of who is at the other end."""

    max_reply_bytes: int | None
    """The largest reply that the transport's peer takes, or None."""

    @property
    def session(self) -> Session:
        """The session that the connection is attached to."""

    @property
    def attachment(self) -> Attachment:
        """The connection's feeds of events."""

    def attach(self, session: Session, *, resumed: bool, extensions: bool) -> None:
        """`initialize` succeeded."""

    async def wait_to_reply(self) -> None:
        """Wait until the peer has taken enough for another large reply."""

    async def wait_to_push(self) -> None:
        """Wait until one more piece of something long may be sent. Pieces take turns with each other
        and with the output of processes, so that neither waits for the whole of the other.
        """

    def expect_next_poll(self) -> None:
        """A long poll is about to be answered: whoever follows something asks again at once."""

    def probe(self, timeout: float) -> None:
        """Drop the connection unless its peer answers in `timeout` seconds."""

    def finish(self) -> None:
        """Read nothing more, answer what was read, and end the connection."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; silently nothing once the connection is gone."""

    def own(self, kind: type[T], make: Callable[[], T]) -> T:
        """The connection's one object of this kind, made at first use, closed with the
        connection: file handles, a watch.
        """


class Encoded(msgspec.Struct, frozen=True):
    """A result that is JSON already. `after` is called when the reply is queued: what may not
    overtake it is begun there.

    `begun` results are of requests that began something which goes on after the reply. Their `after`
    is called when nobody wants the reply, too, and they are never refused for the size of others.

    `rest` is what follows `json`: pieces that are too large to be joined, and go to the peer as they are.
    """

    json: bytes
    after: Callable[[], None] | None = None
    begun: bool = False
    rest: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.json) + sum(map(len, self.rest))


class StreamedResult(msgspec.Struct, frozen=True):
    """A result too large to be made in one piece: `head`, then the pieces, then `tail`.

    Together they are the JSON of the result. Nothing of it may fail any more but the
    reading of the source; when that fails the connection is dropped, because half a
    message cannot be taken back.

    `size` is how many bytes the pieces have together; they may turn out to be fewer, never more.
    """

    head: bytes
    pieces: AsyncGenerator[bytes, None]
    tail: bytes
    size: int


Result = Mapping[str, Any] | Encoded | StreamedResult
"""What a handler gives. A plain `dict` is the common case."""

Handler = Callable[[Caller, Any], Result | Awaitable[Result]]
Handlers = Mapping[str, Handler]
