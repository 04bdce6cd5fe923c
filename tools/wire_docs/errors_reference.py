"""Write the reference page of the errors, or check that it is current.

`python -m tools.wire_docs.errors_reference [--check] PROTOCOL PAGE`. The classes and numbers come from
`errors.py`, what each method answers from `method_errors.py`, and what the names mean from the table in
PROTOCOL (`docs/protocol.md`, "Standard JSON-RPC"). A name that only one of them knows is an error, with or
without `--check`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator

from execprotocol.errors import RpcError, file_error
from execprotocol.methods import METHODS
from tools.wire_docs.generated import split_check, write_or_check
from tools.wire_docs.method_errors import ERRORS, MethodError, errors_of

_HEAD = """\
# Errors

<!-- Written by `make schemas` from clients/python/execprotocol/errors.py; edits here are lost. -->

An error reply has a number, which is coarse, and a sentence for people. Connections that speak
[standard JSON-RPC](../protocol.md#standard-json-rpc) also get `data.code`, a name for programs, and
`data.field`, the parameter at fault, when there is one. A name never changes its meaning; a sentence may,
but for those that [the wire](../protocol.md) gives in full.

Which of them a method answers stands with each method under [messages](messages.md).
"""

_ROW = re.compile(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| \N{MINUS SIGN}(\d+) \|", re.MULTILINE)


class DriftError(Exception):
    """The table of the wire and the code do not name the same errors."""


def page(protocol: str) -> str:
    """The page, in Markdown; `protocol` is the text of `docs/protocol.md`.

    Raises:
        DriftError: its table of names is not that of the code.
    """
    by_name = _names(protocol)
    parts = [_HEAD]
    for kind in sorted(RpcError.__subclasses__(), key=lambda kind: -kind.code):
        names = [name for name, code in by_name.items() if code == kind.code]
        # The class's own name last: it is what is left when nothing finer fits.
        names.sort(key=lambda name: (name == kind.default_name, name))
        parts.append(f"\n## {kind.code} `{kind.default_name}`\n\n{_sentence(kind)}\n")
        for name in names:
            parts.append(f"\n### `{name}`\n\n")
            parts.extend(_entry(kind, name))
    return "".join(parts)


def _sentence(kind: type[RpcError]) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0].strip()


def _names(protocol: str) -> dict[str, int]:
    """Each name with its number; the table of the wire is the source, the code has to agree."""
    section = protocol.partition("\n## Standard JSON-RPC\n")[2].partition("\n## ")[0]
    table = {
        name: -int(code) for names, code in _ROW.findall(section) for name in re.findall(r"[a-z_]+", names)
    }
    known = {kind.default_name: kind.code for kind in RpcError.__subclasses__()}
    known |= {error.name: error.code for error in ERRORS.values()}
    known |= {error.name: error.code for error in map(_of_errno, errno.errorcode)}
    wrong = {name for name in table.keys() | known.keys() if table.get(name) != known.get(name)}
    if wrong:
        raise DriftError(
            f"docs/protocol.md and execprotocol do not say the same of {', '.join(sorted(wrong))}"
        )
    return table


def _of_errno(number: int) -> RpcError:
    return file_error(OSError(number, ""))


def _entry(kind: type[RpcError], name: str) -> Iterator[str]:
    errors = {key: error for key, error in ERRORS.items() if (error.code, error.name) == (kind.code, name)}
    numbers = [number for number in sorted(errno.errorcode) if _of_errno(number).name == name]
    if name not in ("io_error", "internal_error") and numbers:
        texts = (f"{errno.errorcode[number]} (`{os.strerror(number)}`)" for number in numbers)
        yield f"The operating system's {', '.join(texts)}.\n\n"
    if not errors:
        if name not in _GENERAL:
            raise DriftError(f"no method is said to answer {name}")
        yield _GENERAL[name] + "\n"
        return
    yield "| when | answered by |\n| --- | --- |\n"
    for key, error in errors.items():
        yield f"| {error.when} | {_methods(key, error)} |\n"


_GENERAL = {
    "parse_error": "Any message, on connections of the JSON-RPC 2.0 dialect: not JSON, or beyond a limit of "
    "the [envelope](../protocol.md#envelope). The Codex dialect answers -32600 with an `id` of -1.",
    "method_not_found": "Any request whose method is not in the table of [messages](messages.md).",
}


def _methods(key: str, error: MethodError) -> str:
    answering = [method for method in METHODS.values() if key in errors_of(method)]
    if len(answering) == len(METHODS):
        return "every method"
    others = [method for method in METHODS.values() if method not in answering]
    if len(others) < len(answering) and len(others) <= 6:
        return "every method but " + ", ".join(_link(method.name) for method in others)
    return ", ".join(_link(method.name) for method in answering)


def _link(name: str) -> str:
    anchor = re.sub(r"[^\w\s-]", "", name).strip().lower().replace(" ", "-")
    return f"[`{name}`](messages.md#{anchor})"


def main(argv: list[str]) -> int:
    """Write or check the file."""
    arguments = split_check(argv, "tools.wire_docs.errors_reference [--check] PROTOCOL PAGE", 2)
    if arguments is None:
        return 2
    (protocol, target), check = arguments
    try:
        wanted = page(protocol.read_text())
    except DriftError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return write_or_check({target: wanted}, "the errors", check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
