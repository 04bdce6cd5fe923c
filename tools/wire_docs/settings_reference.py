"""Write the reference page of the settings from the model.

`python -m tools.wire_docs.settings_reference [--check] FILE`. With `--check` nothing is written, and
the exit status says whether the file is what would be written.
"""

from __future__ import annotations

import sys
from itertools import groupby

from execserver.configuration.options import OPTIONS, Option
from tools.wire_docs.generated import write_or_check_page

_HEAD = """\
# Settings

<!-- Written by `make schemas` from execserver/configuration/model.py; edits here are lost. -->

Every setting has one name in three spellings: a flag of `execserver serve`, a variable, and a key at the
top level of the [configuration file](../how-to/configure.md). The key is the flag with underscores; dashes
are not accepted there.

## Precedence

For each setting by itself, the first of these that has it:

1. the flag (`--session-ttl 80`);
2. the variable (`EXECSERVER_SESSION_TTL=80`; an empty one counts as missing);
3. the configuration file (`session_ttl = 80`);
4. the default.

Lists are not merged: a flag that may be repeated replaces the whole list of the variable or the file. In a
variable the parts of a list are separated by spaces. Truth values are `true` and `false`, as flags `--NAME`
and `--no-NAME`. `execserver config show` prints what holds, and where each value comes from.

## The configuration file

The first of these is read, and only that one:

1. `--config PATH`;
2. `EXECSERVER_CONFIG`;
3. `$XDG_CONFIG_HOME/execserver/config.toml`, or `~/.config/execserver/config.toml` without that variable;
4. `/etc/execserver/config.toml`.

A file named by 1 or 2 must exist; an empty name means that no file is read. The file must belong to the
daemon's user or to root, and no other user may be able to write it: it decides who may connect. It has at
most 1 MiB.

Relative file names start in the folder of the configuration file when they stand there, and in the working
directory when they come from a flag or a variable.

## What is an error

An unknown key, a value of the wrong type (a number in quotes, too) or out of bounds, and wrong syntax stop
the start with status 1 and the place, `PATH:LINE`; the same for the value of a variable. A flag that is
unknown or malformed is status 2. Values that another place overrides are checked all the same. An unknown
variable that begins with `EXECSERVER_` is only a warning: it may be meant for another version.
"""


def page() -> str:
    """The page, in Markdown."""
    parts = [_HEAD]
    for group, options in groupby(OPTIONS.values(), key=lambda option: option.group):
        parts.append(f"\n## {group[0].upper()}{group[1:]}\n")
        parts.extend(_entry(option) for option in options)
    return "".join(parts)


def _entry(option: Option) -> str:
    accepted = "a list of listen URLs, at most 64" if option.name == "listen" else option.accepted
    rows = [
        ("flag", _flag(option)),
        ("variable", f"`{option.variable}`"),
        ("accepted", accepted),
        ("default", _default(option)),
    ]
    sentence = option.description[0].upper() + option.description[1:]
    lines = [f"\n### `{option.name}`\n", f"\n{sentence}.\n", "\n| | |\n| --- | --- |\n"]
    if option.secret:
        rows.append(("shown", "never"))
    return "".join([*lines, *(f"| {name} | {text} |\n" for name, text in rows)])


def _flag(option: Option) -> str:
    if option.type is bool:
        return f"`{option.flag}`, `--no-{option.flag[2:]}`"
    value = option.metavar or "|".join(option.choices).replace("|", "\\|")
    return f"`{option.flag} {value}`" + (", may be repeated" if option.repeated else "")


def _default(option: Option) -> str:
    if option.default in (None, ()):
        return f"not set: {option.shown(option.default)}" if option.unset else "not set"
    return option.shown(option.default)


def main(argv: list[str]) -> int:
    """Write or check the file."""
    return write_or_check_page(argv, "tools.wire_docs.settings_reference", "the settings", page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
