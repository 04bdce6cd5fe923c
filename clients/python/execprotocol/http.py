"""`http/request`: requests that the executor makes for the client (`docs/protocol.md`, "HTTP")."""

from __future__ import annotations

from typing import Literal, TypedDict

from execprotocol.model import U64, Base64Bytes, Params, WrittenBase64


class HttpHeader(Params):
    """A request header; `valueEnvVar` appends a variable of the executor's environment."""

    name: str
    """The name of the header, in any case."""

    value: str
    """The value, or what stands before the variable's value."""

    value_env_var: str | None = None
    """The variable of the executor's environment whose value is appended; null for none. One that is
    not set, empty, or not for clients is refused."""


class HttpRequestParams(Params):
    """Make an HTTP request from the executor.

    Any status is a result; it is an error when no whole response came. Up to 10 redirects are
    followed. With `streamResponse` the result comes after the head, and the body in
    `http/request/bodyDelta` events; streams end with the connection.
    """

    method: str
    """The method, sent as it is given."""

    url: str
    """The address, with the scheme `http` or `https`."""

    request_id: str
    """The client's own name for the request; no other stream of the connection may have it."""

    headers: list[HttpHeader] = []
    """The headers to send, in this order."""

    body_base64: Base64Bytes | None = None
    """The body to send; null for none."""

    timeout_ms: U64 | None = None
    """How long all of it may take, the body of the response included, in milliseconds; null for any
    time, and 0 fails at once."""

    redirect_policy: Literal["follow", "stop"] = "follow"
    """`follow` goes where a redirect leads; `stop` gives the redirect as the result."""

    stream_response: bool = False
    """Whether the body comes in events instead of the result."""


class HttpResponseHeader(TypedDict):
    """A response header. One that came several times is there several times, in order."""

    name: str
    """The name, in lower case."""

    value: str
    """The value as it came."""


class HttpRequestResult(TypedDict):
    """The response, or its head when it is streamed."""

    status: int
    """The status code of the response."""

    headers: list[HttpResponseHeader]
    """The headers of the response, in the order in which they came."""

    bodyBase64: WrittenBase64
    """The body as it came, at most 47 MiB; empty when it is streamed."""


class BodyDeltaEvent(TypedDict):
    """A piece of the body of a streamed response.

    The last one is empty and `done`, and says why if the body broke.
    """

    requestId: str
    """The request, as the client named it."""

    seq: U64
    """The number of the piece within its stream, from 1, without gaps."""

    deltaBase64: WrittenBase64
    """The bytes as they came, at most 1 MiB."""

    done: bool
    """Whether this is the last piece; the `requestId` is free again behind it."""

    error: str | None
    """Why the body is not whole; null while nothing is wrong."""
