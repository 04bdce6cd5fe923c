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
from collections import ChainMap
from collections.abc import Iterable, Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import msgspec

from execprotocol.environment import OpenRpcDocument
from execprotocol.methods import Method
from execprotocol.model import Params

DIALECT = "https://json-schema.org/draft/2020-12/schema"
EXTENSION_FAMILY = "execserver"

OPEN = frozenset({OpenRpcDocument})
"""Results that may have members beside those of the schema."""

Schema = dict[str, Any]

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}


class _Schemas:
    """Makes the schemas of types, and of all that they refer to.

    Args:
        place: where the latter will stand, such as `#/$defs/`.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self.definitions: dict[str, Schema] = {}
        """By the names of the classes."""

    def of_object(self, shape: Any) -> Schema:
        """The schema of a model, or of a result."""
        properties, required = {}, []
        for name, attribute, member, is_required in self._members(shape):
            text = member_description(shape, attribute)
            properties[name] = _sorted(member if text is None else {**member, "description": text})
            required += [name] if is_required else []
        schema: Schema = {"description": _text(shape), "properties": properties, "title": shape.__name__}
        if required:
            schema["required"] = required
        if not _is_model(shape) or shape.__struct_config__.forbid_unknown_fields:
            schema["additionalProperties"] = shape in OPEN
        return _sorted({**schema, "type": "object", **getattr(shape, "further_schema", {})})

    def reference(self, shape: Any) -> Schema:
        """A reference to the schema of a model or a result."""
        name = shape.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # it may refer to itself
            self.definitions[name] = self.of_object(shape)
        return {"$ref": self._place + name}

    def _members(self, shape: Any) -> Iterator[tuple[str, str, Schema, bool]]:
        """Of each member its name on the wire and in the class, its schema, and whether it is required."""
        if not _is_model(shape):
            for name, kind in get_type_hints(shape, include_extras=True).items():
                is_required = get_origin(kind) is not NotRequired
                yield name, name, self._of(kind if is_required else get_args(kind)[0]), is_required
            return
        tag = shape.__struct_config__.tag_field
        if tag is not None:
            yield tag, tag, self._of(Literal[shape.__struct_config__.tag]), True
        for field in msgspec.structs.fields(shape):
            schema = self._of(field.type)
            if field.default is not msgspec.NODEFAULT:
                schema["default"] = field.default
            elif field.default_factory is not msgspec.NODEFAULT:
                schema["default"] = field.default_factory()
            if issubclass(shape, Params) and field.name in shape.extension_members:
                schema["x-extension"] = EXTENSION_FAMILY
            yield field.encode_name, field.name, schema, field.required

    def _of(self, kind: Any) -> Schema:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._bounded(kind)
        if origin in (Union, UnionType):
            return self._either([each for each in arguments if each is not NoneType], arguments)
        if origin is Literal:
            choice = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
            return {**choice, "type": _TYPES[type(arguments[0])]}
        if origin is list:
            return {"items": self._of(arguments[0]), "type": "array"}
        if origin is dict:
            return {"additionalProperties": self._of(arguments[1]) or True, "type": "object"}
        if kind in _TYPES:
            return {"type": _TYPES[kind]}
        if kind is Any:
            return {}
        schema: Schema | None = getattr(kind, "schema", None)
        if schema is None:
            return self.reference(kind)
        return self._either(schema["anyOf"], schema["anyOf"]) if "anyOf" in schema else _sorted(schema)

    def _bounded(self, kind: Any) -> Schema:
        schema = self._of(kind.__origin__)
        length = "Items" if schema.get("type") == "array" else "Length"
        for meta in kind.__metadata__:
            bounds = {
                "minimum": meta.ge,
                "maximum": meta.le,
                f"min{length}": meta.min_length,
                f"max{length}": meta.max_length,
            }
            schema.update({name: bound for name, bound in bounds.items() if bound is not None})
            schema.update(meta.extra_json_schema or {})
        return _sorted(schema)

    def _either(self, choices: list[Any], arguments: Iterable[Any]) -> Schema:
        """One of several; `arguments` may have null besides."""
        tag = choices[0].__struct_config__.tag_field if len(choices) > 1 else None
        if tag is not None:
            tags = {each.__struct_config__.tag: self.reference(each)["$ref"] for each in choices}
            discriminator = {"mapping": _sorted(tags), "propertyName": tag}
            return {"discriminator": discriminator, "oneOf": [self.reference(each) for each in choices]}
        schemas: list[Schema] = []
        for each in arguments:
            schema = self._of(each)
            schemas += schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
        return {"anyOf": schemas}


def message_schema(title: str, shape: type) -> Schema:
    """One message as a JSON Schema document that stands for itself."""
    schemas = _Schemas("#/$defs/")
    schema = schemas.of_object(shape)
    if schemas.definitions:
        schema = {"$defs": _sorted(schemas.definitions), **schema}
    return {"$schema": DIALECT, **schema, "title": title}


def shared_schemas(shapes: Iterable[type], place: str) -> dict[str, Schema]:
    """The schemas of several types and of all that they refer to, by the names of the classes.

    Args:
        shapes: parameter models and result shapes.
        place: where the schemas will stand, such as `#/components/schemas/`.
    """
    schemas = _Schemas(place)
    for shape in shapes:
        schemas.reference(shape)
    return schemas.definitions


def positions(model: type[Params]) -> list[str]:
    """The wire names of the members in the order of the array form; extension members have none."""
    fields = msgspec.structs.fields(model)
    return [field.encode_name for field in fields if field.name not in model.extension_members]


def method_description(method: Method) -> tuple[str, str]:
    """The first paragraph about a method, and everything about it: the docstring of its parameters,
    or of its result where it takes none.
    """
    return description(method.result if method.takes_nothing else method.params)


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


def _is_model(shape: type) -> bool:
    return issubclass(shape, msgspec.Struct)


def _sorted(schema: Schema) -> Schema:
    return dict(sorted(schema.items()))


def _text(shape: type) -> str:
    paragraphs = inspect.cleandoc(shape.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@cache
def _member_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Class → member → the text below it, for one of our modules."""
    if not module.startswith(("execprotocol.", "execserver.", "tools.")):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            # A `TypedDict` is at run time no subclass of the one that it extends.
            extended = [found.get(base.id, {}) for base in node.bases if isinstance(base, ast.Name)]
            found[node.name] = {**ChainMap(_docstrings_in(node), *extended)}
    return found


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
