"""Decodes parameters, an object or an array in field order, for handlers. No I/O.

`docs/protocol.md`, "Envelope": the forms of `params`, and the texts of -32602.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from execprotocol.errors import InvalidParams
from execprotocol.faults import first_fault, kind_of
from execprotocol.methods import Method
from execprotocol.model import Params, decode

NOTHING: Final[Any] = object()
"""The parameters of methods without parameters."""


def decode_params(method: Method, params: Any) -> Params:
    """Decode a request's parameters.

    Raises:
        InvalidParams: they do not fit; the message names the field.
    """
    if params is None or params == {}:
        if method.takes_nothing:
            return NOTHING  # type: ignore[no-any-return]
        params = {}
    elif params.__class__ is list:
        params = _by_position(method.params, params)
    elif params.__class__ is not dict:
        raise InvalidParams(f"invalid type: {kind_of(params)}, expected an object")
    if params and method.takes_nothing:
        raise InvalidParams(f"invalid length: {method.name} takes no parameters")
    try:
        return decode(method.params, params)
    except msgspec.ValidationError:
        fault = first_fault(method.params, params)
        raise InvalidParams(fault.text, field=fault.field or None) from None


def _by_position(model: type[Params], values: list[Any]) -> dict[str, Any]:
    """Name the values of an array.

    Raises:
        InvalidParams: there are too many or too few.
    """
    names, least = _positions(model)
    if not names or not least <= len(values) <= len(names):
        raise InvalidParams(
            f"invalid length {len(values)}, expected struct {model.__name__} with {len(names)} elements"
        )
    return dict(zip(names, values, strict=False))


@cache
def _positions(model: type[Params]) -> tuple[tuple[str, ...], int]:
    """The wire names in order, and how many values are required. Null stands for an absent value, so only
    members with another default may be left out at the end.
    """
    fields = [each for each in msgspec.structs.fields(model) if each.name not in model.extension_members]
    least = max(
        (place for place, field in enumerate(fields, 1) if field.required or field.default is None),
        default=0,
    )
    return tuple(field.encode_name for field in fields), least
