"""The reference page of what governs a model's tool calls: tools, approvals, sandboxes, rules and patches.

What is on it is what the modules of `SECTIONS` have in `__all__`. A name that several have stands in the
first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import griffe

from tools.reference_page import (
    DriftError,
    ReferencePage,
    Sources,
    cell,
    exported,
    is_error,
    methods_of,
    resolved,
    slug,
)

MAX_VALUE = 60
"""Characters of a default or a constant. A longer one is named, and its type shown."""


@dataclass(frozen=True, slots=True)
class Section:
    """A module with names of its own."""

    module: str
    """Below `execclient`."""
    purpose: str
    """Of the module, for the table at the beginning."""
    entrances: tuple[str, ...] = ()
    """What one begins with; the rest follows in the order of the alphabet."""


SECTIONS = (
    Section(
        "tools",
        "the tools of a model: what it is shown, its calls and their results",
        (
            "Toolset",
            "ToolsConfig",
            "Turn",
            "ToolResult",
            "CallRecord",
            "Failure",
            "Inspection",
            "HostSettings",
        ),
    ),
    Section("tools.registry", "tools of a host's own", ("Registry",)),
    Section("tools.errors", "why a call gave nothing"),
    Section("govern.approvals", "questions, and who answers", ("Approvals", "ApprovalRequest", "Review")),
    Section("govern.approval_policy", "when a person is asked", ("approval_policy", "ApprovalPolicy")),
    Section("govern.terminal_approver", "asking a person at a terminal"),
    Section("govern.queue_approver", "asking in a host's own user interface", ("QueueApprover",)),
    Section("govern.sandbox", "what commands may touch", ("sandbox_policy", "SandboxPolicy")),
    Section("govern.policy", "which commands may run", ("Policy", "decide", "Requirement")),
    Section("patch", "reading, planning and applying patches", ("parse_patch", "plan_at", "apply")),
)

_HEAD = """\
# Tools, approvals, rules and patches

<!-- Written by `make schemas` from the docstrings in clients/python/execclient; edits here are lost. -->

What an agent host has for the tool calls of its model. The modules are imported by their names
(`from execclient.tools import Toolset`), and need `pip install "execclient[tools]"` (part of
`pip install execserver`); rule files need the extra `policy` besides.

{modules}
How they are used: [tools for a model](../how-to/agent-tools.md), [rules](../how-to/policy.md),
[approvals](../how-to/approvals.md), [patches](../how-to/patch.md), and all of it in
[the tutorial](../tutorial/governed-agent.md). What they stand on: [the Python client](client.md).

What holds everywhere:

- Times are seconds, sizes are bytes, unless a name says something else.
- Paths are those of the executor's machine, but for those of rule files, which are our own.
- What talks to an executor also raises what any call of [the client](client.md#errors) does.
- A parameter behind the `*` is given by its name; an attribute with a value need not be given.
"""

_COMMON = {"SandboxPolicy": "_Policy"}
"""Unions that have members: where those stand."""


class ToolsPage(ReferencePage):
    """The page."""

    def __init__(self, sources: Sources) -> None:
        rows = "".join(
            f"| [`execclient.{each.module}`](#{slug(f'execclient.{each.module}')}) | {each.purpose} |\n"
            for each in SECTIONS
        )
        super().__init__(sources, _HEAD.format(modules=f"| module | for |\n| --- | --- |\n{rows}"))
        self._places: dict[str, str] = {}
        """The heading of each name."""
        self._names: dict[str, Mapping[str, griffe.Object]] = {}
        """Of each section."""
        self._classes: dict[str, griffe.Class] = {}
        """Those that stand in signatures and have no heading here."""
        for section in SECTIONS:
            self._find_places(section)

    def text(self) -> str:
        """All of it, in Markdown.

        Raises:
            DriftError: a public name has no place.
        """
        for section in SECTIONS:
            self._section(section)
        self._types()
        self._other_classes()
        return "".join(self._parts)

    # -- places

    def _find_places(self, section: Section) -> None:
        module = self._package[section.module]
        if module.name == "errors":
            names = {name: found for name, found in module.classes.items() if is_error(found)}
        else:
            names = exported(module)
            if not names:
                raise DriftError(f"{module.path} has no __all__")
        unknown = [name for name in section.entrances if name not in names]
        if unknown:
            raise DriftError(f"{module.path} has no {', '.join(unknown)}, which its section begins with")
        names = {name: names[name] for name in (*section.entrances, *sorted(names))}
        # A module that forwards what another one has
        names = {name: found for name, found in names.items() if name not in self._places}
        self._names[section.module] = names
        for name, found in names.items():
            self._places[name] = self._title(section, name, found)

    def _title(self, section: Section, name: str, found: griffe.Object) -> str:
        # Functions with their module: `plan` and `Plan` would be one anchor.
        return f"{section.module.rpartition('.')[2]}.{name}" if isinstance(found, griffe.Function) else name

    def _place(self, name: str) -> str | None:
        if name in self._places:
            return f"#{slug(self._places[name])}"
        return f"client.md#{slug(name)}" if name in self._public else None

    # -- sections

    def _section(self, section: Section) -> None:
        module = self._package[section.module]
        self._add(f"\n## `{module.path}`\n\n{section.purpose[0].upper()}{section.purpose[1:]}.\n")
        if module.name == "errors":
            self._error_tree(module, self._names[section.module], module.path)
            return
        errors = False
        constants = []
        for name, found in self._names[section.module].items():
            if name in _COMMON:
                self._union(found)
            elif is_error(found):
                errors = True
            elif isinstance(found, griffe.Class):
                self._class(found)
            elif isinstance(found, griffe.Function):
                self._add(f"\n### `{self._places[name]}`\n")
                self._signature(found)
                self._docstring(found)
            elif name.isupper():
                constants.append(found)
            else:
                self._alias(found)
        if constants:
            self._constants_of(module, constants)
        if errors:
            self._add(f"\n### Errors of `{module.path}`\n")
            self._error_tree(self._package[f"{section.module}.errors"], exported(module), module.path)

    def _class(self, found: griffe.Class) -> None:
        self._add(f"\n### `{found.name}`\n")
        if self._is_made(found):
            self._signature(found["__init__"], name=found.name, returns=found.name)
        self._members(found)

    def _members(self, found: griffe.Class) -> None:
        self._docstring(found)
        self._attributes(found)
        for method in self._methods(found):
            self._method(found, method)

    def _is_made(self, found: griffe.Class) -> bool:
        """Whether hosts make one, with arguments that are not just its attributes."""
        return "__init__" in found.members and bool(_described(found, griffe.DocstringSectionParameters))

    def _union(self, found: griffe.Object) -> None:
        base = found.module[_COMMON[found.name]]
        self._add(f"\n### `{found.name}`\n")
        self._documented(found)
        assert isinstance(found, griffe.Attribute)
        self._add(f"\n`{self._expression(found.value)}`. {self._meaning(found)}\n")
        self._attributes(base)
        for method in self._methods(base):
            self._add(f"\n#### `{found.name}.{method.name}`\n")
            self._signature(method)
            self._docstring(method)

    def _alias(self, found: griffe.Object) -> None:
        self._documented(found)
        self._note(found.path)

    def _constants_of(self, module: griffe.Module, constants: Sequence[griffe.Object]) -> None:
        self._add(f"\n### Constants of `{module.path}`\n\n| name | value, or type | |\n| --- | --- | --- |\n")
        for found in constants:
            self._documented(found)
            self._add(f"| `{found.name}` | {cell(self._worth(found))} | {cell(self._meaning(found))} |\n")

    def _worth(self, found: griffe.Object) -> str:
        """The value of a constant, or its type."""
        assert isinstance(found, griffe.Attribute)
        value = str(found.value).replace("'", '"')
        if len(value) <= MAX_VALUE:
            return f"`{value}`"
        if found.annotation is not None:
            return f"`{self._expression(found.annotation)}`"
        return f"`{found.value.function}`" if isinstance(found.value, griffe.ExprCall) else ""

    def _documented(self, found: griffe.Object) -> None:
        if found.docstring is None:
            raise DriftError(f"{found.path} has no docstring")

    # -- members

    def _has_row(self, owner: griffe.Class, member: griffe.Attribute) -> bool:
        if not super()._has_row(owner, member) or member.name in _described(
            owner, griffe.DocstringSectionAttributes
        ):
            return False
        if any(member.name in base.members for base in _private_bases(owner)):
            return member.name == "kind"  # all others are said of what they have in common
        return bool(self._type_of(owner, member) or member.docstring)

    def _type_of(self, owner: griffe.Class, member: griffe.Attribute) -> str:
        type_ = super()._type_of(owner, member).strip("`")
        default = member.value
        if isinstance(default, griffe.ExprCall) and str(default.function) == "field":
            default = _factory(default)
        if not type_ or default is None or "class-attribute" not in member.labels:
            return f"`{type_}`" if type_ else ""
        return f"`{type_} = {self._value(default)}`"

    def _expression(self, expression: str | griffe.Expr | None) -> str:
        return super()._expression(expression).replace("'", '"')  # as the source has it

    def _value(self, default: str | griffe.Expr) -> str:
        value = super()._value(default)
        return (value if len(value) <= MAX_VALUE else str(default)).replace("'", '"')

    def _methods(self, owner: griffe.Class) -> Sequence[griffe.Function]:
        common = {name for base in _private_bases(owner) for name in base.members}
        return [method for method in methods_of(owner) if method.name not in common]

    def _error(self, found: griffe.Class) -> None:
        self._members(found)

    # -- types

    def _note(self, path: str) -> None:
        found = self._find(path)
        if isinstance(found, griffe.Class):
            if found.name not in self._places:
                self._classes[found.name] = found
        elif isinstance(found, griffe.Attribute) and not _has_no_row(found):
            known = self._aliases.get(found.name)
            if known is not None and str(known.value) != str(found.value):
                raise DriftError(f"{found.path} and {known.path} are different types of one name")
            # Several modules may have it; the first one that says what it is for is asked.
            if known is None or known.docstring is None:
                super()._note(path)

    def _other_classes(self) -> None:
        """Where the classes are that signatures name and that have no heading."""
        self._add("\n## Other classes in signatures\n\n| name | module | |\n| --- | --- | --- |\n")
        for name, found in sorted(self._classes.items()):
            module = "execclient" if name in self._public else found.module.path
            sentence = found.docstring.value.partition("\n\n")[0] if found.docstring else ""
            meaning = self._linked(" ".join(sentence.split()))
            self._add(f"| {self._name(name)} | `{module}` | {cell(meaning)} |\n")


def _has_no_row(alias: griffe.Attribute) -> bool:
    """Whether it stands for any type, or has a heading."""
    made_by = alias.value.function if isinstance(alias.value, griffe.ExprCall) else None
    return str(made_by) == "TypeVar" or alias.name in _COMMON


def _factory(field: griffe.ExprCall) -> str | None:
    """What a field is by default that has something to make its value."""
    for argument in field.arguments:
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default_factory":
            return f"{argument.value}()"
    return None


def _described(owner: griffe.Class, kind: type[griffe.DocstringSection]) -> set[str]:
    """The names that a docstring has in one of its sections."""
    sections = owner.docstring.parse("google") if owner.docstring else []
    return {item.name for section in sections if isinstance(section, kind) for item in section.value}


def _private_bases(owner: griffe.Class) -> Iterator[griffe.Class]:
    """What it has in common with others, and is written of once."""
    for base in owner.bases:
        name = str(base)
        if name in _COMMON.values():
            found = resolved(owner.module[name])
            assert isinstance(found, griffe.Class)
            yield found
