"""What the reference pages of the library have in common: signatures, docstrings and links, in Markdown.

The sources are read and not imported. A page is a `ReferencePage` with a plan of its own
(`client_reference.py`, `tools_reference.py`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import griffe

ROOT = Path(__file__).resolve().parents[1]

LINE_LENGTH = 100
"""Of a signature, beyond which each parameter has a line of its own."""

_SIGNATURE = (
    "<!-- elsewhere: make schemas-check: the signatures of the code, with which that compares them -->"
)
_EXAMPLE = (
    "<!-- elsewhere: tests/docs/test_client_reference.py::test_an_example_in_a_docstring_runs: "
    "needs a daemon, which that test starts -->"
)

_ERROR_TREE = re.compile(r"^ {4}\w+Error(?: {2}|$).*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)

_REFERENCE = re.compile(r'`docs/([a-z/-]+)\.md`(?:,\s+(?:"([^"]+)"|([A-Z]\d+)\b))?')
"""A page, and a heading or a statement on it."""


class DriftError(Exception):
    """The code has something for which the page has no place."""


class Sources(NamedTuple):
    """The code that pages are made from."""

    package: griffe.Module
    """`execclient`."""
    constants: Mapping[str, griffe.Object]
    """Those that defaults are taken from, by their path."""


def load(sources: Path) -> Sources:
    """Read the code; `sources` is the folder that `execclient` lies in."""
    loader = griffe.GriffeLoader(search_paths=[sources, ROOT], docstring_parser=griffe.Parser.google)
    package = loader.load("execclient")
    limits = loader.load("execprotocol.limits")
    loader.resolve_aliases()
    assert isinstance(package, griffe.Module)
    assert isinstance(limits, griffe.Module)
    return Sources(package, dict(_below(limits.members.values())))


def _below(members: Iterable[griffe.Object | griffe.Alias]) -> Iterator[tuple[str, griffe.Object]]:
    for member in members:
        if isinstance(member, griffe.Attribute):
            yield member.path, member


class ReferencePage:
    """A page as it grows.

    Args:
        sources: the code.
        head: what the page begins with.
    """

    def __init__(self, sources: Sources, head: str) -> None:
        self._package, self._constants = sources
        self._parts = [head]
        self._public = exported(self._package)
        """What `execclient` has, by name."""
        self._aliases: dict[str, griffe.Attribute] = {}
        """Types of ours that stand in signatures."""

    def text(self) -> str:
        """All of it, in Markdown.

        Raises:
            DriftError: a public name has no place.
        """
        raise NotImplementedError

    def _add(self, *parts: str) -> None:
        self._parts.extend(parts)

    # -- classes and functions

    def _method(self, owner: griffe.Class, method: griffe.Function) -> None:
        iterates = method.name in ("__anext__", "__next__")
        title = f"async for … in {owner.name}" if iterates else f"{owner.name}.{method.name}"
        self._add(f"\n#### `{title}`\n")
        if not iterates:
            self._signature(method)
        self._docstring(method)

    def _signature(
        self, function: griffe.Function, *, name: str | None = None, returns: str | None = None
    ) -> None:
        parameters = list(self._parameters(function))
        start = f"{'async ' if 'async' in function.labels else ''}def {name or function.name}("
        end = f") -> {returns or self._expression(function.returns)}: ..."
        if "classmethod" in function.labels or "staticmethod" in function.labels:
            start = f"@{'class' if 'classmethod' in function.labels else 'static'}method\n{start}"
        line = start + ", ".join(parameters) + end
        if len(line.rpartition("\n")[2]) > LINE_LENGTH:
            line = "\n".join([start, *(f"    {each}," for each in parameters), end])
        line = line.replace("'", '"')  # as the source has it
        self._add(f"\n{_SIGNATURE}\n```python\n{line}\n```\n")

    def _parameters(self, function: griffe.Function) -> Iterator[str]:
        named_only = False
        for parameter in function.parameters:
            if parameter.name in ("self", "cls"):
                continue
            if parameter.kind is griffe.ParameterKind.keyword_only and not named_only:
                named_only = True
                yield "*"
            stars = {
                griffe.ParameterKind.var_positional: "*",
                griffe.ParameterKind.var_keyword: "**",
            }.get(parameter.kind or griffe.ParameterKind.positional_or_keyword, "")
            text = f"{stars}{parameter.name}: {self._expression(parameter.annotation)}"
            yield text if parameter.default is None or stars else f"{text} = {self._value(parameter.default)}"

    def _attributes(self, owner: griffe.Class) -> None:
        rows = []
        for member in owner.members.values():
            if isinstance(member, griffe.Attribute) and self._has_row(owner, member):
                type_ = self._type_of(owner, member)
                rows.append(f"| `{member.name}` | {cell(type_)} | {cell(self._meaning(member))} |\n")
        if rows:
            self._add("\n| attribute | type | |\n| --- | --- | --- |\n", *rows)

    def _has_row(self, owner: griffe.Class, member: griffe.Attribute) -> bool:
        return member.is_public and member.name != "code"

    def _methods(self, owner: griffe.Class) -> Sequence[griffe.Function]:
        """Those with something to say, in the order of the source."""
        return [method for method in methods_of(owner) if "classmethod" not in method.labels]

    def _type_of(self, owner: griffe.Class, member: griffe.Attribute) -> str:
        """Its annotation, else that of the parameter that it keeps, or the class that it is made with."""
        annotation = member.annotation
        value = member.value
        if annotation is None and isinstance(value, griffe.ExprName):
            parameters = owner["__init__"].parameters
            annotation = parameters[value.name].annotation if value.name in parameters else None
        if annotation is None and isinstance(value, griffe.ExprCall):
            made = self._find(value.function.canonical_path)
            annotation = made.name if isinstance(made, griffe.Class) else None
        return f"`{self._expression(annotation)}`" if annotation else ""

    # -- expressions

    def _expression(self, expression: str | griffe.Expr | None) -> str:
        """As it is written, but for modules that were imported under another name."""
        if expression is None:
            return "None"
        if isinstance(expression, str):
            return expression.strip("'\"")
        parts = []
        for part in expression.iterate(flat=True):
            if isinstance(part, griffe.ExprName):
                path = part.canonical_path
                self._note(path)
                parts.append(part.name if "." in path else path)
            else:
                parts.append(str(part))
        return "".join(parts)

    def _value(self, default: str | griffe.Expr) -> str:
        """A default, a constant as what it stands for."""
        if isinstance(default, griffe.ExprName):
            constant = self._find(default.canonical_path)
            if isinstance(constant, griffe.Attribute) and constant.value is not None:
                return str(constant.value)
        return str(default)

    def _note(self, path: str) -> None:
        """Remember a type that is none of Python's, and none that has a heading of its own."""
        found = self._find(path)
        if isinstance(found, griffe.Attribute) and found.value is not None:
            self._aliases[found.name] = found

    def _find(self, path: str) -> griffe.Object | None:
        if path in self._constants:
            return self._constants[path]
        package, _, rest = path.partition(".")
        if package != self._package.name or not rest:
            return None
        try:
            return resolved(self._package[rest])
        except KeyError:
            return None

    # -- docstrings

    def _docstring(self, found: griffe.Object) -> None:
        if found.docstring is None:
            raise DriftError(f"{found.path} has no docstring")
        for section in found.docstring.parse("google"):
            match section:
                case griffe.DocstringSectionText():
                    self._prose(section.value)
                case griffe.DocstringSectionParameters() | griffe.DocstringSectionAttributes():
                    self._add("\n")
                    for item in section.value:
                        self._item(f"`{item.name}`", item.description)
                case griffe.DocstringSectionRaises():
                    self._add("\nRaises:\n\n")
                    for failure in section.value:
                        self._item(self._raised(str(failure.annotation)), failure.description)
                case griffe.DocstringSectionWarns():
                    self._add("\nWarns:\n\n")
                    for warning in section.value:
                        self._item(f"`{warning.annotation}`", warning.description)
                case griffe.DocstringSectionReturns():
                    self._prose("Returns: " + " ".join(item.description for item in section.value))
                case _:
                    raise DriftError(f"{found.path}: the page has no place for its {section.kind.value}")

    def _prose(self, text: str) -> None:
        for paragraph in re.split(r"\n{2,}(?! {4})", text.strip("\n")):
            code = textwrap.dedent(paragraph)
            if paragraph.startswith("    "):
                self._add(f"\n{_EXAMPLE}\n```python\n{code}\n```\n")
                continue
            prose, _, example = paragraph.partition("\n\n    ")
            self._add(f"\n{self._linked(prose)}\n")
            if example:
                code = textwrap.dedent("    " + example)
                self._add(f"\n{_EXAMPLE}\n```python\n{code}\n```\n")

    def _item(self, name: str, description: str) -> None:
        self._add(f"- {name}: {self._linked(' '.join(description.split()))}\n")

    def _raised(self, names: str) -> str:
        each = (name.strip() for name in names.strip("()").split(","))
        return ", ".join(self._name(name) for name in each)

    def _name(self, name: str) -> str:
        """As a link, if it has a place."""
        place = self._place(name)
        return f"[`{name}`]({place})" if place else f"`{name}`"

    def _place(self, name: str) -> str | None:
        return f"#{slug(name)}" if name in self._public else None

    def _meaning(self, found: griffe.Object) -> str:
        """What an attribute's docstring says, for a cell."""
        return self._linked(" ".join(found.docstring.value.split())) if found.docstring else ""

    def _linked(self, text: str) -> str:
        """With the places of the manual that it names as links, which `mkdocs build --strict` follows."""

        def link(found: re.Match[str]) -> str:
            page, heading, statement = found.groups()
            target = f"../{page}.md"
            if heading is None:
                return f"[{statement or 'the ' + page.rpartition('/')[2]}]({target})"
            title = " ".join(heading.split())
            return f"[{title}]({target}#{slug(title)})"

        return _REFERENCE.sub(link, text)

    # -- errors

    def _error_tree(self, module: griffe.Module, importable: Mapping[str, griffe.Object], home: str) -> None:
        """The tree in a module's docstring, and each class of it.

        Args:
            module: what the classes are in.
            importable: what can be imported from `home`, by name.
            home: the module that programs import them from.
        """
        tree = _ERROR_TREE.search(module.docstring.value if module.docstring else "")
        if tree is None:
            raise DriftError(f"the docstring of {module.path} has no tree")
        self._add(f"\n```text\n{textwrap.dedent(tree[0])}\n```\n")
        for found in module.members.values():
            if not (isinstance(found, griffe.Class) and is_error(found)):
                continue
            if found.name not in importable:
                raise DriftError(f"{found.path} is raised, and cannot be imported from {home}")
            if found.name not in tree[0]:
                raise DriftError(f"the tree in the docstring of {module.path} lacks {found.name}")
            code = str(found["code"].value).strip("'\"")
            bases = ", ".join(self._name(str(base)) for base in found.bases)
            self._add(f"\n### `{found.name}`\n\n`{code}`; a kind of {bases}.\n")
            self._error(found)

    def _error(self, found: griffe.Class) -> None:
        self._docstring(found)

    # -- types

    def _types(self) -> None:
        self._add("\n## Types in signatures\n\n| name | type | |\n| --- | --- | --- |\n")
        for name, found in sorted(self._aliases.items()):
            type_ = f"`{self._expression(found.value)}`"
            self._add(f"| `{name}` | {cell(type_)} | {cell(self._meaning(found))} |\n")


def exported(module: griffe.Module) -> dict[str, griffe.Object]:
    """What a module offers, by name, in the order of its `__all__`."""
    return {name: resolved(module[name]) for name in map(str, module.exports or ())}


def is_error(found: griffe.Object) -> bool:
    """Whether it is of a tree of errors: those have codes."""
    return isinstance(found, griffe.Class) and "code" in found.members and found.module.name == "errors"


def resolved(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """The object behind an alias. The name of a module stands for the function of the same name in it."""
    target = found.final_target if isinstance(found, griffe.Alias) else found
    return target[target.name] if isinstance(target, griffe.Module) else target


def methods_of(owner: griffe.Class) -> Sequence[griffe.Function]:
    """All that can be called by a name, and iteration."""
    return [
        member
        for member in owner.members.values()
        if isinstance(member, griffe.Function)
        and (member.name in ("__anext__", "__next__") or not member.name.startswith("_"))
    ]


def slug(title: str) -> str:
    """The anchor that mkdocs gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def cell(text: str) -> str:
    """A text as it may stand in a table."""
    return text.replace("|", "\\|")
