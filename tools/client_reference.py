"""Write the reference page of the client library from its signatures and docstrings.

`python -m tools.client_reference [--check] SOURCES PAGE`: SOURCES is the folder of the package, which is
read and not imported. With `--check` nothing is written, and the exit status says whether the page is what
would be written. A public name that has no place on the page is an error, with or without `--check`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import griffe

from execserver.generated import split_check, write_or_check

ROOT = Path(__file__).resolve().parents[1]

LINE_LENGTH = 100
"""Of a signature, beyond which each parameter has a line of its own."""

ENTRANCES = ("connect", "Executor", "Process", "TextStream", "FileSystem")
"""What one works with. Other names are values, or errors."""

_HEAD = """\
# The Python client

<!-- Written by `make schemas` from the docstrings in clients/python/execclient; edits here are lost. -->

`execclient` comes with the daemon: `pip install execserver`. It has three modules:

| module | for |
| --- | --- |
| [`execclient`](#execclient) | asyncio |
| [`execclient.sync`](#execclientsync) | code without an event loop: the same names, and calls that block |
| [`execclient.expect`](#execclientexpect) | programs to be talked to at a terminal, in pexpect's way |

How they are used: [a first session](../tutorial/first-session.md), [in a program](../how-to/client.md),
[interactive programs](../how-to/interactive-programs.md),
[long-running services](../how-to/long-running-services.md), [other machines](../how-to/ssh.md).

What holds everywhere:

- Times are seconds, sizes are bytes, unless a name says something else.
- Paths are those of the daemon's machine, relative ones begin in `Executor.cwd`; `local` paths are our own.
- Whatever is said to raise something also raises what any call does: [`CallTimeout`](#calltimeout),
  [`SessionLost`](#sessionlost) when a lost connection cannot be made up for,
  [`OutcomeUnknown`](#outcomeunknown) when it was lost at a time after which the call must not be repeated,
  [`ExecutorClosed`](#executorclosed) after the end.
- A parameter behind the `*` is given by its name.
"""

_SIGNATURE = (
    "<!-- elsewhere: make schemas-check: the signatures of the code, with which that compares them -->"
)
_EXAMPLE = (
    "<!-- elsewhere: tests/docs/test_client_reference.py::test_an_example_in_a_docstring_runs: "
    "needs a daemon, which that test starts -->"
)

_REFERENCE = re.compile(r'`docs/([a-z/-]+)\.md`(?:,\s+(?:"([^"]+)"|([A-Z]\d+)\b))?')
"""A page, and a heading or a statement on it."""
_ERROR_TREE = re.compile(r"^ {4}ExecServerError\b.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class DriftError(Exception):
    """The code has something for which the page has no place."""


class Page:
    """The page as it grows. `package` is `execclient`."""

    def __init__(self, package: griffe.Module, constants: Mapping[str, griffe.Object]) -> None:
        self._package = package
        self._constants = constants
        self._parts = [_HEAD]
        self._public = {name: _resolved(package[name]) for name in map(str, package.exports or ())}
        self._aliases: dict[str, griffe.Attribute] = {}
        """Types of ours that stand in signatures."""

    def text(self) -> str:
        """All of it, in Markdown.

        Raises:
            DriftError: a public name has no place.
        """
        errors = [name for name, found in self._public.items() if self._is_error(found)]
        values = [name for name in self._public if name not in (*ENTRANCES, *errors)]
        self._add("\n## `execclient`\n")
        for name in ENTRANCES:
            self._object(self._public[name])
        self._add("\n## What calls give\n")
        for name in values:
            self._object(self._public[name])
        self._errors()
        self._sync()
        self._expect()
        self._types()
        return "".join(self._parts)

    def _add(self, *parts: str) -> None:
        self._parts.extend(parts)

    # -- classes and functions

    def _object(self, found: griffe.Object) -> None:
        if not isinstance(found, griffe.Class):
            raise DriftError(f"{found.path} is no class, and the page knows no other public names")
        is_call = found.name == "connect"  # a class that is used like a function
        self._add(f"\n### `{found.name}`\n")
        if is_call:
            self._signature(found["__init__"], name="connect", returns="Executor")
        self._docstring(found)
        if not is_call:
            self._attributes(found)
            for method in _methods(found):
                self._method(found, method)

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
        line = start + ", ".join(parameters) + end
        if len(line) > LINE_LENGTH:
            line = "\n".join([start, *(f"    {each}," for each in parameters), end])
        line = line.replace("'", '"')  # as the source has it
        self._add(f"\n{_SIGNATURE}\n```python\n{line}\n```\n")

    def _parameters(self, function: griffe.Function) -> Iterator[str]:
        named_only = False
        for parameter in function.parameters:
            if parameter.name == "self":
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
            if isinstance(member, griffe.Attribute) and member.is_public and member.name != "code":
                type_ = self._type_of(owner, member)
                meaning = " ".join(member.docstring.value.split()) if member.docstring else ""
                rows.append(f"| `{member.name}` | {_cell(type_)} | {_cell(self._linked(meaning))} |\n")
        if rows:
            self._add("\n| attribute | type | |\n| --- | --- | --- |\n", *rows)

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
            return _resolved(self._package[rest])
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
        return ", ".join(
            f"[`{name}`](#{_slug(name)})" if name in self._public else f"`{name}`" for name in each
        )

    def _linked(self, text: str) -> str:
        """With the places of the manual that it names as links, which `mkdocs build --strict` follows."""

        def link(found: re.Match[str]) -> str:
            page, heading, statement = found.groups()
            target = f"../{page}.md"
            if heading is None:
                return f"[{statement or 'the ' + page.rpartition('/')[2]}]({target})"
            title = " ".join(heading.split())
            return f"[{title}]({target}#{_slug(title)})"

        return _REFERENCE.sub(link, text)

    # -- the errors

    def _is_error(self, found: griffe.Object) -> bool:
        return isinstance(found, griffe.Class) and found.module.path == "execclient.errors"

    def _errors(self) -> None:
        module = self._package["errors"]
        tree = _ERROR_TREE.search(module.docstring.value if module.docstring else "")
        if tree is None:
            raise DriftError("the docstring of execclient.errors has no tree")
        self._add(
            "\n## Errors\n",
            "\nOne tree. The word beside each class is its `code`, which programs may match on; a number is",
            " that of the [wire](errors.md).\n",
            f"\n```text\n{textwrap.dedent(tree[0])}\n```\n",
        )
        for found in module.classes.values():
            if isinstance(found, griffe.Alias):
                continue
            if found.name not in self._public:
                raise DriftError(f"{found.path} is raised, and cannot be imported from execclient")
            if found.name not in tree[0]:
                raise DriftError(f"the tree in the docstring of execclient.errors lacks {found.name}")
            code = found["code"].value.strip("'\"")
            bases = ", ".join(self._base(str(base)) for base in found.bases)
            self._add(f"\n### `{found.name}`\n\n`{code}`; a kind of {bases}.\n")
            self._docstring(found)

    def _base(self, name: str) -> str:
        return f"[`{name}`](#{_slug(name)})" if name in self._public else f"`{name}`"

    # -- the other modules

    def _sync(self) -> None:
        module = self._package["sync"]
        self._add("\n## `execclient.sync`\n")
        self._docstring(module)
        self._add("\n| | the same in `execclient` |\n| --- | --- |\n")
        for name in map(str, module.exports or ()):
            found = _resolved(module[name])
            if isinstance(found, griffe.Class):
                core = self._public[found.name]
                names = [
                    member.name
                    for member in found.members.values()
                    if member.is_public and not member.name.startswith("__")
                ]
                missing = [name for name in names if name not in core.members]
                if missing:
                    raise DriftError(f"{core.path} has no {', '.join(missing)}, as execclient.sync has")
                cells = ", ".join(self._member(core, name) for name in names)
                self._add(f"| `{found.name}` | {cells or self._base(found.name)} |\n")
            else:
                self._add(f"| `{name}` | {self._base(name)} |\n")

    def _member(self, owner: griffe.Object, name: str) -> str:
        if isinstance(_resolved(owner[name]), griffe.Function):
            return f"[`{name}`](#{_slug(f'{owner.name}.{name}')})"
        return f"[`{name}`](#{_slug(owner.name)})"

    def _expect(self) -> None:
        module = self._package["expect"]
        self._add("\n## `execclient.expect`\n")
        self._docstring(module)
        for name in map(str, module.exports or ()):
            found = module[name]
            self._add(f"\n### `{found.name}`\n")
            self._signature(found["__init__"], name=found.name, returns=found.name)
            self._docstring(found)
            for method in _methods(found):
                self._method(found, method)

    def _types(self) -> None:
        self._add("\n## Types in signatures\n\n| name | type | |\n| --- | --- | --- |\n")
        for name, found in sorted(self._aliases.items()):
            meaning = " ".join(found.docstring.value.split()) if found.docstring else ""
            type_ = f"`{self._expression(found.value)}`"
            self._add(f"| `{name}` | {_cell(type_)} | {_cell(self._linked(meaning))} |\n")


def _resolved(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """What a name stands for; the module `connect` has in it what the package means by its name."""
    target = found.final_target if isinstance(found, griffe.Alias) else found
    return target[target.name] if isinstance(target, griffe.Module) else target


def _methods(owner: griffe.Class) -> Sequence[griffe.Function]:
    """Those with something to say, in the order of the source."""
    return [
        member
        for member in owner.members.values()
        if isinstance(member, griffe.Function)
        and "classmethod" not in member.labels  # makes one from the wire
        and (member.name in ("__anext__", "__next__") or not member.name.startswith("_"))
    ]


def _slug(title: str) -> str:
    """The anchor that mkdocs gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(sources: Path) -> str:
    """The page; `sources` is the folder that `execclient` lies in.

    Raises:
        DriftError: it has no place for something.
    """
    loader = griffe.GriffeLoader(search_paths=[sources, ROOT], docstring_parser=griffe.Parser.google)
    package = loader.load("execclient")
    limits = loader.load("execserver.protocol.limits")
    loader.resolve_aliases()
    assert isinstance(package, griffe.Module)
    assert isinstance(limits, griffe.Module)
    return Page(package, dict(_below(limits.members.values()))).text()


def _below(members: Iterable[griffe.Object | griffe.Alias]) -> Iterator[tuple[str, griffe.Object]]:
    for member in members:
        if isinstance(member, griffe.Attribute):
            yield member.path, member


def main(argv: list[str]) -> int:
    """Write or check the page."""
    arguments = split_check(argv, "tools.client_reference [--check] SOURCES PAGE", 2)
    if arguments is None:
        return 2
    (sources, target), check = arguments
    try:
        wanted = page(sources)
    except DriftError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return write_or_check({target: wanted}, "the docstrings of execclient", check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
