"""`http/request`: HTTP requests by the executor for the client (`docs/protocol.md`, "HTTP")."""

from __future__ import annotations

from typing import Literal, TypedDict

from execprotocol.model import U64, Base64Bytes, Params, WrittenBase64


class HttpHeader(Params):
    """A request header; `valueEnvVar` appends a variable of the executor's environment."""

    name: str
    """The name of the header, in any case."""

    value: str
    """The value, or the part before the variable's value."""

    value_env_var: str | None = None
    """The variable of the executor's environment whose value is appended; null for none. A variable that
    is not set, is empty or is not for clients is refused."""


class HttpRequestParams(Params):
    """Make an HTTP request from the executor.

    A response with any status is a result; an incomplete response is an error. Up to 10 redirects are
    followed. With `streamResponse` the result is sent after the head of the response, and the body in
    `http/request/bodyDelta` events. Streams end with the connection.
    """

    method: str
    """The method, sent as it is given."""

    url: str
    """The URL, with the scheme `http` or `https`."""

    request_id: str
    """The client's name for the request, not in use by another stream of the connection."""

    headers: list[HttpHeader] = []
    """The headers to send, in this order."""

    body_base64: Base64Bytes | None = None
    """The body to send; null for none."""

    timeout_ms: U64 | None = None
    """The limit for the request and the whole response, in milliseconds; null for no limit; 0 fails at
    once."""

    redirect_policy: Literal["follow", "stop"] = "follow"
    """`follow` follows redirects; `stop` returns the redirect as the result."""

    stream_response: bool = False
    """Whether the body is sent in events instead of the result."""


class HttpResponseHeader(TypedDict):
    """A response header. Repeated headers are repeated here, in order."""

    name: str
    """The name, in lower case."""

    value: str
    """The value as received."""


class HttpRequestResult(TypedDict):
    """The response, or its head if it is streamed."""

    status: int
    """The status code of the response."""

    headers: list[HttpResponseHeader]
    """The headers of the response, in their order."""

    bodyBase64: WrittenBase64
    """The body as received, at most 47 MiB; empty if it is streamed."""


class BodyDeltaEvent(TypedDict):
    """A piece of the body of a streamed response.

    The last piece is empty and `done`, and has an `error` if the body is incomplete.
    """

    requestId: str
    """The client's name for the request."""

    seq: U64
    """The number of the piece within its stream, from 1, without gaps."""

    deltaBase64: WrittenBase64
    """The bytes as received, at most 1 MiB."""

    done: bool
    """Whether this is the last piece; after it the `requestId` is free again."""

    error: str | None
    """Why the body is incomplete; null without an error."""
