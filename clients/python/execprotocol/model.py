"""What all parameter models share: strictness, spelling, the field types of the wire, and their decoder."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar

import msgspec
import pybase64
from msgspec import Meta

from execprotocol.path_uri import PathUriError, parse_path_uri

T = TypeVar("T")


class Params(msgspec.Struct, rename="camel"):
    """Base of all parameter models: strict types, camelCase names, unknown members ignored."""

    extension_members: ClassVar[frozenset[str]] = frozenset()
    """Members of ours that the reference does not have; never given by position."""


class WireError(ValueError):
    """A value that its type does not take. The text reaches the client verbatim."""

    def __init__(self, text: str, *, field: str | None = None) -> None:
        """Args:
        text: a sentence for people.
        field: the member at fault, when the text is about a whole object.
        """
        super().__init__(text)
        self.field = field


class MismatchError(ValueError):
    """A value of another kind than its type takes; the text says what that is."""


def wire_type(decode: Callable[[Any], Any], *makes: type, **schema: Any) -> Any:
    """A type that JSON does not have, for annotations of members.

    Args:
        decode: gives what the member is to be, or raises `WireError` or `MismatchError`.
        makes: the types of what it gives.
        schema: how the member looks on the wire, as a JSON Schema.
    """
    made = ABCMeta("WireType", (), {"decode": staticmethod(decode), "schema": schema})
    for kind in makes:
        made.register(kind)
    return made


def stated(**bounds: int | str) -> Meta:
    """Bounds that a schema states, such as `minItems`. What checks them is the type, with the wire's own
    text, or the handler.
    """
    return Meta(extra_json_schema={**bounds})


def decode(model: type[T], value: Any) -> T:
    """What a decoded JSON value stands for.

    Raises:
        msgspec.ValidationError: it does not fit; `faults.first_fault` says where and why.
    """
    return msgspec.convert(value, model, dec_hook=_decode_member)


def _decode_member(kind: Any, value: Any) -> Any:
    return kind.decode(value)


def text(value: Any) -> str:
    """The value, which has to be a text."""
    if value.__class__ is not str:
        raise MismatchError("Input should be a valid string")
    return value


def _path_uri(value: Any) -> str:
    try:
        return parse_path_uri(text(value))
    except PathUriError as error:
        raise WireError(str(error)) from None


def decode_base64(text: bytes | memoryview) -> bytes:
    """The bytes that a text stands for.

    Raises:
        ValueError: it stands for none; the message says why.
    """
    data = pybase64.b64decode(text, validate=True)
    if text[-1:] == b"=" and pybase64.b64encode(data[-(len(data) % 3) :]) != bytes(text[-4:]):
        # The decoder drops what does not fill a byte; such a text was cut or made by mistake.
        raise ValueError("bits are left over at the end")
    return data


def _base64_text(value: Any) -> str | memoryview:
    # The decoder takes the text out of a large message as a view, without copying it.
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
    """The value, which has to be an unsigned 64-bit integer."""
    # `Meta` has no bounds beyond those of signed integers.
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
    """Base64 that is not decoded yet, because it may be as large as a message."""

    U64 = wire_type(u64, int, type="integer", minimum=0, maximum=2**64 - 1)
    """An unsigned 64-bit integer: sequence numbers, offsets, lengths, milliseconds."""

U16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]

# What stands in results and events: never decoded here, so it is of interest to schemas only.

WrittenUri = Annotated[str, stated(format="uri", pattern="^file:///[!-~]*$")]
"""A path as the daemon writes it: `file:///…`, in ASCII, with upper-case escapes."""

WrittenBase64 = Annotated[str, stated(contentEncoding="base64")]
"""Bytes as the daemon writes them: standard base64 with padding."""

EXTENSION = stated(**{"x-extension": "execserver"})
"""Marks a member that only those connections get which asked for it in `initialize`."""
