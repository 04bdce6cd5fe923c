"""Decoding of parameters by their models. Pure; it is imported when the first request needs it.

`docs/protocol.md`, "Envelope": what may stand in `params`, and the texts of -32602.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import ValidationError

from execserver.loading import LOADER
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import Method
from execserver.protocol.model import Params
from execserver.rpc.kinds import kind_of


def validate(method: Method, params: dict[str, Any]) -> Params:
    """Decode parameters by name.

    Raises:
        InvalidParams: they do not fit; the message names the field.
    """
    model = method.params
    if not model.__pydantic_complete__:
        LOADER.load(model.model_rebuild)
    try:
        return model.__pydantic_validator__.validate_python(params)  # type: ignore[no-any-return]
    except ValidationError as error:
        text, field = _describe(error)
        raise InvalidParams(text, field=field) from None


def by_position(model: type[Params], values: list[Any]) -> dict[str, Any]:
    """Give values their names.

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
    """The wire names in order, and how many must be given: null stands for an absent value, and
    only members with another default may be left out at the end.
    """
    fields = [
        (name, field) for name, field in model.model_fields.items() if name not in model.extension_members
    ]
    least = max(
        (place for place, (_, field) in enumerate(fields, 1) if field.is_required() or field.default is None),
        default=0,
    )
    return tuple(field.alias or name for name, field in fields), least


def _describe(error: ValidationError) -> tuple[str, str]:
    """One sentence for the client, and the member at fault: what is wrong comes before what is
    missing, as a decoder that reads from left to right finds it.
    """
    faults = error.errors(include_url=False, include_input=True, include_context=True)
    fault = next((fault for fault in faults if fault["type"] != "missing"), faults[0])
    where = ".".join(str(part) for part in fault["loc"])
    kind = fault["type"]
    if kind == "missing":
        return f"missing field `{fault['loc'][-1]}`", where
    if kind == "union_tag_not_found":
        return f"missing field `{where}.type`", f"{where}.type"
    if kind == "wire":
        return fault["msg"], where
    if kind in ("literal_error", "union_tag_invalid"):
        context = fault["ctx"]
        value = context.get("tag", fault["input"])
        expected = context.get("expected") or context.get("expected_tags")
        return f"unknown variant `{value}`, expected {expected} (field `{where}`)", where
    return f"invalid type: {kind_of(fault['input'])} for field `{where}`: {fault['msg']}", where
