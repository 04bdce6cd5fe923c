"""JSON Schemas (2020-12) of the wire's types, with descriptions out of their docstrings.

What stands below a member of a class as a string is the description of that member. It is read
from the source when schemas are made, not when the class is: a daemon that starts does not pay
for what few clients ask. Requests are described as the decoder takes them (`rpc/params.py`):
members that it does not know are ignored, so schemas do not forbid them. Results and events
are described exactly: what is not in the schema is not sent.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from execserver.protocol.methods import Method
from execserver.protocol.model import Params

DIALECT = "https://json-schema.org/draft/2020-12/schema"
EXTENSION_FAMILY = "execserver"

Schema = dict[str, Any]


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with our descriptions and without its made-up titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A parameter model."""
        model: type[BaseModel] = schema["cls"]
        json_schema = super().model_schema(schema)
        properties = json_schema.get("properties", {})
        for name, field in model.model_fields.items():
            entry = properties[field.alias or name]
            _describe(entry, model, name)
            if issubclass(model, Params) and name in model.extension_members:
                entry["x-extension"] = EXTENSION_FAMILY
        return _described(json_schema, model)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """A result, or an object in one."""
        shape = schema["cls"]
        json_schema = super().typed_dict_schema(schema)
        for name, entry in json_schema.get("properties", {}).items():
            _describe(entry, shape, name)
        json_schema.setdefault("additionalProperties", False)
        return _described(json_schema, shape)

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never: a title made of the member's name says nothing."""
        return False


def message_schema(title: str, shape: type) -> Schema:
    """One message as a JSON Schema document that stands for itself."""
    adapter: TypeAdapter[Any] = TypeAdapter(shape)
    schema = adapter.json_schema(mode=_mode(shape), schema_generator=_Generator)
    return {"$schema": DIALECT, **schema, "title": title}


def shared_schemas(shapes: Iterable[type], place: str) -> dict[str, Schema]:
    """The schemas of several types and of all that they refer to, by the names of the classes.

    Args:
        shapes: parameter models and result shapes.
        place: where the schemas will stand, such as `#/components/schemas/`.
    """
    _, common = TypeAdapter.json_schemas(
        [(shape, _mode(shape), TypeAdapter(shape)) for shape in dict.fromkeys(shapes)],
        schema_generator=_Generator,
        ref_template=place + "{model}",
    )
    definitions: dict[str, Schema] = common["$defs"]
    return definitions


def positions(model: type[Params]) -> list[str]:
    """The wire names of the members in the order of the array form; extension members have none."""
    return [
        field.alias or name
        for name, field in model.model_fields.items()
        if name not in model.extension_members
    ]


def method_description(method: Method) -> tuple[str, str]:
    """The first paragraph about a method, and everything about it: the docstring of its parameters,
    or of its result where it takes none.
    """
    return description(method.params if method.params.model_fields else method.result)


def description(shape: type) -> tuple[str, str]:
    """The first paragraph of a class's docstring, and all of it."""
    text = _text(shape)
    return text.split("\n\n")[0], text


def member_description(shape: type, name: str) -> str | None:
    """What stands in the source below a member, also of the class that it is inherited from."""
    for owner in inspect.getmro(shape):
        found = _member_docstrings(owner.__module__).get(owner.__qualname__, {}).get(name)
        if found is not None:
            return found
    return None


def _mode(shape: type) -> JsonSchemaMode:
    return "validation" if issubclass(shape, BaseModel) else "serialization"


def _describe(entry: Schema, owner: type, name: str) -> None:
    text = member_description(owner, name)
    if text is not None:
        entry["description"] = text


def _described(schema: JsonSchemaValue, shape: type) -> JsonSchemaValue:
    return {**schema, "description": _text(shape)}


def _text(shape: type) -> str:
    paragraphs = inspect.cleandoc(shape.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@cache
def _member_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Class → member → the text below it, for one of our modules."""
    if not module.startswith("execserver."):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _docstrings_in(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docstrings_in(definition: ast.ClassDef) -> dict[str, str]:
    found = {}
    for member, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(member, ast.AnnAssign)
            and isinstance(member.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[member.target.id] = " ".join(below.value.value.split())
    return found
