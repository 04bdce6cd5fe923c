"""The base of all parameter models, the field types of the wire, and their decoder."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar

import msgspec
import pybase64
from msgspec import Meta

from execprotocol.limits import MAX_TIMEOUT_MS
from execprotocol.path_uri import PathUriError, parse_path_uri

T = TypeVar("T")


class Params(msgspec.Struct, rename="camel"):
    """Base of all parameter models: strict types, camelCase names, unknown members ignored."""

    extension_members: ClassVar[frozenset[str]] = frozenset()
    """Members that cannot be given by position, such as those that the reference does not have."""


class WireError(ValueError):
    """A value that its type refuses. The text is sent to the client verbatim."""

    def __init__(self, text: str, *, field: str | None = None) -> None:
        """Args:
        text: a sentence for people.
        field: the member at fault, if the text is about a whole object.
        """
        super().__init__(text)
        self.field = field


class MismatchError(ValueError):
    """A value of another kind than its type. The text names the expected kind."""


def wire_type(decode: Callable[[Any], Any], *makes: type, **schema: Any) -> Any:
    """A type for annotations of members that JSON does not have.

    Args:
        decode: returns the decoded member, or raises `WireError` or `MismatchError`.
        makes: the types of the results of `decode`.
        schema: the JSON Schema of the member on the wire.
    """
    made = ABCMeta("WireType", (), {"decode": staticmethod(decode), "schema": schema})
    for kind in makes:
        made.register(kind)
    return made


def stated(**bounds: int | str) -> Meta:
    """Bounds for the schema, such as `minItems`. The type or the handler checks them, with the wire's own
    error text.
    """
    return Meta(extra_json_schema={**bounds})


def decode(model: type[T], value: Any) -> T:
    """Convert a decoded JSON value to a model.

    Raises:
        msgspec.ValidationError: the value does not fit; `faults.first_fault` says where and why.
    """
    return msgspec.convert(value, model, dec_hook=_decode_member)


def _decode_member(kind: Any, value: Any) -> Any:
    return kind.decode(value)


def text(value: Any) -> str:
    """The value, which must be a string."""
    if value.__class__ is not str:
        raise MismatchError("Input should be a valid string")
    return value


def _path_uri(value: Any) -> str:
    try:
        return parse_path_uri(text(value))
    except PathUriError as error:
        raise WireError(str(error)) from None


def decode_base64(text: bytes | memoryview) -> bytes:
    """Decode base64 of the standard alphabet with padding, and nothing else.

    Raises:
        ValueError: the text is not valid base64; the message says why.
    """
    data = pybase64.b64decode(text, validate=True)
    if text[-1:] == b"=" and pybase64.b64encode(data[-(len(data) % 3) :]) != bytes(text[-4:]):
        # The decoder drops bits that do not fill a byte; such a text was cut, or is wrong.
        raise ValueError("bits are left over at the end")
    return data


def _base64_text(value: Any) -> str | memoryview:
    # The codec passes the text of a large message as a view, without copying it.
    if not isinstance(value, (str, memoryview)):
        raise WireError("invalid type: expected a base64 string")
    return value


def _base64_bytes(value: Any) -> bytes:
    given = _base64_text(value)
    try:
        return decode_base64(given.encode() if isinstance(given, str) else given)
    except ValueError as error:
        raise WireError(f"invalid base64: {error}") from None


def u64(value: Any) -> int:
    """The value, which must be an unsigned 64-bit integer."""
    # `Meta` has no bounds beyond signed integers.
    if value.__class__ is not int:
        raise MismatchError("Input should be a valid integer")
    if value < 0:
        raise MismatchError("Input should be greater than or equal to 0")
    if value >= 2**64:
        raise MismatchError(f"Input should be less than or equal to {2**64 - 1}")
    return value


_BASE64_SCHEMA = {"type": "string", "contentEncoding": "base64"}

if TYPE_CHECKING:
    PathUri: TypeAlias = str
    Base64Bytes: TypeAlias = bytes
    Base64Text: TypeAlias = str | memoryview
    U64: TypeAlias = int
else:
    PathUri = wire_type(_path_uri, str, type="string", format="uri", pattern="^[Ff][Ii][Ll][Ee]:[^?#]*$")
    """A `file:` URI; decoded to a native path, or to `ForeignPath`."""

    Base64Bytes = wire_type(_base64_bytes, bytes, **_BASE64_SCHEMA)
    """Standard base64 with padding; decoded to bytes."""

    Base64Text = wire_type(_base64_text, str, memoryview, **_BASE64_SCHEMA)
    """Base64 that is not decoded yet: it may be as large as a message."""

    U64 = wire_type(u64, int, type="integer", minimum=0, maximum=2**64 - 1)
    """An unsigned 64-bit integer: sequence numbers, offsets, lengths, milliseconds."""

U16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]

Milliseconds = Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)]
"""A limit in time."""

# Types of results and events: for schemas only, because they are never decoded here.

WrittenUri = Annotated[str, stated(format="uri", pattern="^file:///[!-~]*$")]
"""A path URI from the daemon: `file:///…`, in ASCII, with upper-case escapes."""

WrittenBase64 = Annotated[str, stated(contentEncoding="base64")]
"""Bytes from the daemon: standard base64 with padding."""

EXTENSION = stated(**{"x-extension": "execserver"})
"""Marks a member that is only sent to connections that asked for it in `initialize`."""
