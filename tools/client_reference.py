"""Write the reference pages of the client library from its signatures and docstrings.

`python -m tools.client_reference [--check] SOURCES CLIENT_PAGE TOOLS_PAGE`: SOURCES is the folder of the
package, which is read and not imported. With `--check` nothing is written, and the exit status says whether
the pages are what would be written. A public name that has no place on them is an error, with or without
`--check`.

Here is the page of the client itself; that of the tools for models is in `tools_reference.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import griffe

from tools.reference_page import (
    DriftError,
    ReferencePage,
    Sources,
    is_error,
    load,
    methods_of,
    resolved,
    slug,
)
from tools.tools_reference import ToolsPage
from tools.wire_docs.generated import split_check, write_or_check

ENTRANCES = ("connect", "Executor", "Process", "TextStream", "LineStream", "FileSystem", "Watch")
"""What one works with. Other names are values, or errors."""

_HEAD = """\
# The Python client

<!-- Written by `make schemas` from the docstrings in clients/python/execclient; edits here are lost. -->

`pip install execclient` installs the client alone, `pip install execserver` the daemon and the client. Extras
of the client: `ws` for WebSockets, `relay` for executors behind a relay, `expect` for pexpect, `tools` for
[the tools of a model](tools.md), `policy` for rule files, `ignore` for patterns of trees, `cli` for
the commands. It has four modules:

| module | for |
| --- | --- |
| [`execclient`](#execclient) | asyncio |
| [`execclient.sync`](#execclientsync) | code without an event loop: the same names, and calls that block |
| [`execclient.expect`](#execclientexpect) | programs to be talked to at a terminal, in pexpect's way |
| [`execclient.search`](#execclientsearch) | lines by their text, files by their name |

How they are used: [a first session](../tutorial/first-session.md), [in a program](../how-to/client.md),
[interactive programs](../how-to/interactive-programs.md),
[long-running services](../how-to/long-running-services.md), [other machines](../how-to/ssh.md).

Rules for all methods:

- Times are in seconds and sizes in bytes, unless a name says otherwise.
- Paths are on the daemon's machine, relative to `Executor.cwd`; `local` paths are on the client's machine.
- Each call may also raise [`CallTimeout`](#calltimeout), [`SessionLost`](#sessionlost) if a lost connection
  cannot be replaced, [`OutcomeUnknown`](#outcomeunknown) if the connection was lost and the call must not be
  repeated, and [`ExecutorClosed`](#executorclosed) after the end.
- Parameters after the `*` are keyword-only.
"""


class ClientPage(ReferencePage):
    """The page of `execclient`, `execclient.sync`, `execclient.expect` and `execclient.search`."""

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources, _HEAD)

    def text(self) -> str:
        """All of it, in Markdown.

        Raises:
            DriftError: a public name has no place.
        """
        errors = [name for name, found in self._public.items() if is_error(found)]
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
        self._search()
        self._types()
        return "".join(self._parts)

    def _object(self, found: griffe.Object) -> None:
        if not isinstance(found, griffe.Class):
            raise DriftError(f"{found.path} is no class, and the page knows no other public names")
        if found.module.name == "sandbox":
            self._policy(found)
            return
        is_call = found.name == "connect"  # a class that is used like a function
        self._add(f"\n### `{found.name}`\n")
        if is_call:
            self._signature(found["__init__"], name="connect", returns="Executor")
        self._docstring(found)
        if not is_call:
            self._attributes(found)
            for method in self._methods(found):
                self._method(found, method)

    def _policy(self, found: griffe.Class) -> None:
        """A sandbox policy: its members are on the page of its own module."""
        self._add(f"\n### `{found.name}`\n")
        self._docstring(found)
        self._add(f"\nIts parameters and members: [`{found.path}`](tools.md#{slug(found.name)}).\n")

    def _errors(self) -> None:
        self._add(
            "\n## Errors\n",
            "\nOne tree. The word beside each class is its `code`, which programs may match on; a number is",
            " that of the [wire](errors.md).\n",
        )
        self._error_tree(self._package["errors"], self._public, "execclient")

    def _methods(self, owner: griffe.Class) -> Sequence[griffe.Function]:
        """Also those of a class of the package that exists to be its base: first those of the same module."""
        bases = [base for base in owner.resolved_bases if base.package == owner.package]
        inherited: dict[bool, list[griffe.Function]] = {True: [], False: []}
        for base in bases:
            if isinstance(base, griffe.Class):
                inherited[base.module == owner.module] += methods_of(base)
        return [*inherited[True], *super()._methods(owner), *inherited[False]]

    # -- the other modules

    def _sync(self) -> None:
        module = self._package["sync"]
        self._add("\n## `execclient.sync`\n")
        self._docstring(module)
        self._add("\n| | the same in `execclient` |\n| --- | --- |\n")
        for name in map(str, module.exports or ()):
            found = resolved(module[name])
            if isinstance(found, griffe.Class):
                core = self._public[found.name]
                names = [
                    member.name
                    for member in found.members.values()
                    if member.is_public and not member.name.startswith("__")
                ]
                missing = [name for name in names if name not in core.all_members]
                if missing:
                    raise DriftError(f"{core.path} has no {', '.join(missing)}, as execclient.sync has")
                cells = ", ".join(self._member(core, name) for name in names)
                self._add(f"| `{found.name}` | {cells or self._name(found.name)} |\n")
            else:
                same = self._name(name) if name in self._public else f"[`{name}`](#{slug(name)})"
                self._add(f"| `{name}` | {same} |\n")

    def _member(self, owner: griffe.Object, name: str) -> str:
        if isinstance(resolved(owner[name]), griffe.Function):
            return f"[`{name}`](#{slug(f'{owner.name}.{name}')})"
        return f"[`{name}`](#{slug(owner.name)})"

    def _expect(self) -> None:
        module = self._package["expect"]
        self._add("\n## `execclient.expect`\n")
        self._docstring(module)
        for name in map(str, module.exports or ()):
            found = module[name]
            self._add(f"\n### `{found.name}`\n")
            self._signature(found["__init__"], name=found.name, returns=found.name)
            self._docstring(found)
            for method in self._methods(found):
                self._method(found, method)

    def _search(self) -> None:
        module = self._package["search"]
        self._add("\n## `execclient.search`\n")
        self._docstring(module)
        # Functions first.
        for name in sorted(map(str, module.exports or ()), key=str.istitle):
            found = resolved(module[name])
            if isinstance(found, griffe.Function | griffe.Class):
                self._add(f"\n### `{found.name}`\n")
                if isinstance(found, griffe.Function):
                    self._signature(found)
                self._docstring(found)
            if isinstance(found, griffe.Class):
                self._attributes(found)


def pages(sources: Path) -> tuple[str, str]:
    """The pages of the client and of the tools; `sources` is the folder that `execclient` lies in.

    Raises:
        DriftError: they have no place for something.
    """
    code = load(sources)
    return ClientPage(code).text(), ToolsPage(code).text()


def main(argv: list[str]) -> int:
    """Write or check the pages."""
    arguments = split_check(argv, "tools.client_reference [--check] SOURCES CLIENT_PAGE TOOLS_PAGE", 3)
    if arguments is None:
        return 2
    (sources, *targets), check = arguments
    try:
        wanted = dict(zip(targets, pages(sources), strict=True))
    except DriftError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return write_or_check(wanted, "the docstrings of execclient", check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
