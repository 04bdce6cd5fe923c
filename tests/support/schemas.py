"""The generated schemas, for tests that hold messages against them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[2] / "schemas"


def schema_of(name: str) -> dict[str, Any]:
    """The content of one file below `schemas/`."""
    schema: dict[str, Any] = json.loads((SCHEMAS / name).read_text())
    return schema


def params_schema(method: str) -> dict[str, Any]:
    """The schema of a method's parameters."""
    return schema_of(f"{method.replace('/', '.')}.params.json")


def result_schema(method: str) -> dict[str, Any]:
    """The schema of a method's result."""
    return schema_of(f"{method.replace('/', '.')}.result.json")


def event_schema(method: str) -> dict[str, Any]:
    """The schema of the parameters of a notification from the daemon."""
    return schema_of(f"events/{method.replace('/', '.')}.json")


def check(name: str, value: Any) -> None:
    """Fail unless a value is what one file below `schemas/` says.

    Raises:
        jsonschema.ValidationError: it is not.
    """
    _validator(name).validate(value)


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(name), format_checker=Draft202012Validator.FORMAT_CHECKER)
