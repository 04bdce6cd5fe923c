"""What all parameter models share: strictness, spelling and the field types of the wire."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from execserver.protocol.base64_text import decode_base64
from execserver.protocol.path_uri import PathUriError, remembered_path


class Params(BaseModel):
    """Base of all parameter models: strict types, camelCase names, unknown members ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", alias_generator=to_camel, defer_build=True)

    extension_members: ClassVar[frozenset[str]] = frozenset()
    """Members of ours that the reference does not have; never given by position."""


def stated(**bounds: int | str) -> FieldInfo:
    """Bounds that a schema states, such as `minItems`. What checks them is a validator with the
    wire's own text, or the handler.
    """
    field: FieldInfo = Field(json_schema_extra={**bounds})
    return field


def custom_error(message: str) -> PydanticCustomError:
    """A validation error whose text reaches the client verbatim."""
    return PydanticCustomError("wire", "{text}", {"text": message})


def _path_uri(value: str) -> str:
    try:
        return remembered_path(value)
    except PathUriError as error:
        raise custom_error(str(error)) from None


def _base64_text(value: Any) -> str | memoryview:
    # The decoder takes the text out of a large message as a view, without copying it.
    if not isinstance(value, (str, memoryview)):
        raise custom_error("invalid type: expected a base64 string")
    return value


def _base64_bytes(value: Any) -> bytes:
    given = _base64_text(value)
    text = given.encode() if isinstance(given, str) else given
    try:
        return decode_base64(text)
    except ValueError as error:
        raise custom_error(f"invalid base64: {error}") from None


_BASE64_SCHEMA = {"type": "string", "contentEncoding": "base64"}

PathUri = Annotated[
    str,
    AfterValidator(_path_uri),
    WithJsonSchema({"type": "string", "format": "uri", "pattern": "^[Ff][Ii][Ll][Ee]:[^?#]*$"}),
]
"""A `file:` URI; decoded to a native path, or to `ForeignPath`."""

Base64Bytes = Annotated[bytes, PlainValidator(_base64_bytes), WithJsonSchema(_BASE64_SCHEMA)]
"""Standard base64 with padding; decoded to bytes."""

Base64Text = Annotated[str | memoryview, PlainValidator(_base64_text), WithJsonSchema(_BASE64_SCHEMA)]
"""Base64 that is not decoded yet, because it may be as large as a message."""

U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
"""An unsigned 64-bit integer: sequence numbers, offsets, lengths, milliseconds."""

U16 = Annotated[int, Field(ge=0, le=2**16 - 1)]

# What stands in results and events: never decoded here, so it is of interest to schemas only.

WrittenUri = Annotated[
    str, WithJsonSchema({"type": "string", "format": "uri", "pattern": "^file:///[!-~]*$"})
]
"""A path as the daemon writes it: `file:///…`, in ASCII, with upper-case escapes."""

WrittenBase64 = Annotated[str, WithJsonSchema(_BASE64_SCHEMA)]
"""Bytes as the daemon writes them: standard base64 with padding."""

EXTENSION = Field(json_schema_extra={"x-extension": "execserver"})
"""Marks a member that only those connections get which asked for it in `initialize`."""
