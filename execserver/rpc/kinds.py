"""JSON's kinds of values, for people. Pure."""

from __future__ import annotations

from typing import Any


def kind_of(value: Any) -> str:
    """What a value is, in the words of the reference's decoder."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "boolean",
        int: "integer",
        float: "floating point",
        str: "string",
        list: "sequence",
        dict: "map",
    }
    return names.get(type(value), type(value).__name__)
