"""Decoding of parameters: an object, or an array in field order, into what handlers take. Pure.

`docs/protocol.md`, "Envelope": what may stand in `params`. What agents send first is decoded by
`quick_params.py`; everything else by the models of `execserver.protocol`, which are loaded then.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from execserver.loading import LOADER
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import Method
from execserver.rpc.kinds import kind_of
from execserver.rpc.quick_params import decode_quickly

if TYPE_CHECKING:
    from execserver.protocol.model import Params

NOTHING: Final[Any] = object()
"""The parameters of methods that have none."""


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
        params = _load().by_position(method.params, params)
    elif params.__class__ is not dict:
        raise InvalidParams(f"invalid type: {kind_of(params)}, expected an object")
    if params and method.takes_nothing:
        raise InvalidParams(f"invalid length: {method.name} takes no parameters")
    decoded = decode_quickly(method.name, params)
    return _validate(method, params) if decoded is None else decoded


def _validate(method: Method, params: dict[str, Any]) -> Params:
    global _validate
    _validate = _load().validate
    return _validate(method, params)


def _load() -> ModuleType:
    return LOADER.load(lambda: import_module("execserver.rpc.validation"))
