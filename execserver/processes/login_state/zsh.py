"""The state of a zsh after its login files, and a script that restores it.

A zsh that is no interactive one reads nothing that a variable names, so the snapshot is sourced in the first
line of the command, which keeps the numbers of lines and `$0`. The whole command is parsed before that:
aliases and options, which have a say in parsing, are not restored, and login files that set some are unfit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execserver.processes.login_state import UnfitError
from execserver.processes.login_state.dump import (
    Dump,
    changes,
    comparable,
    completed,
    plain_values,
    quoted,
    require_kept,
    require_restorable,
    sections,
)

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec

FIRST_LINES = """\
builtin setopt rcs
__execserver_fd=${${(%):-%x}:t}
exec {__execserver_fd}<&-
unset __execserver_fd
ZSH_EXECUTION_STRING=${ZSH_EXECUTION_STRING#*;}
"""
"""Of each snapshot; see `ShellKind`. Without `rcs` the shell has read no personal file until now."""

DUMP = r"""__execserver_0=$? __execserver_1=$_ __execserver_2=$- __execserver_3="$pipestatus"
\builtin printf '%s\0' MARK status "$__execserver_0" statuses "$__execserver_3" last "$__execserver_1" \
flags "$__execserver_2" arguments "$0 $# $*" background "$!" folder "$PWD" options
\builtin setopt
\builtin printf '\0%s\0' off
\builtin unsetopt
\builtin printf '\0%s\0' aliases
\builtin alias -L
\builtin printf '\0%s\0' traps
\builtin trap
\builtin emulate -R zsh
\builtin setopt null_glob
\builtin printf '\0%s\0' modules
\builtin zmodload -L
\builtin printf '\0%s\0' umask
\builtin umask
\builtin printf '\0%s\0' soft
\builtin ulimit -Sa
\builtin printf '\0%s\0' hard
\builtin ulimit -Ha
\builtin printf '\0%s\0' hashed
\builtin hash -L
\builtin printf '\0%s\0' named
\builtin hash -dL
\builtin printf '\0%s\0' styles
\builtin zstyle -L
\builtin printf '\0%s\0' builtins
\builtin enable
\builtin printf '\0%s\0' mathematics
\builtin functions -M
\builtin printf '\0%s\0' folders
\builtin dirs -lp
\builtin printf '\0%s\0' jobs
\builtin jobs -p
\builtin printf '\0%s\0' variables
\builtin typeset -p
\builtin printf '\0%s\0' functions
\builtin functions
\builtin printf '\0%s\0' keys
\builtin bindkey -L
\builtin printf '\0%s\0' files
for __execserver_0 in /proc/$$/fd/*; do
[[ -e $__execserver_0 ]] && \builtin printf '%s\n' "${__execserver_0##*/}"
done
\builtin printf '\0%s\0' nice
[[ -r /proc/$$/stat ]] && \builtin read -r __execserver_0 </proc/$$/stat
\builtin set -- ${=__execserver_0##*) }
"""

_EQUAL = {
    b"options": "it sets options",
    b"off": "it sets options",
    b"aliases": "it defines aliases",
    b"mathematics": "it defines mathematical functions",
    b"keys": "it binds keys",
    b"umask": "it sets the umask",
    b"soft": "it sets limits",
    b"hard": "it sets limits",
}
"""Besides `dump.EQUAL`: what this shell cannot restore in time, or what few login files do."""

_CHANGING = frozenset(
    b"""_ 0 argv ARGC status pipestatus LINENO PPID RANDOM SECONDS EPOCHSECONDS EPOCHREALTIME TTYIDLE HISTCMD
    ZSH_EXECUTION_STRING ZSH_SUBSHELL ERRNO funcstack functrace""".split()
)
"""Variables that have another value each time, or that stand in another section."""

_VARIABLE = re.compile(rb"(typeset|export)((?: -\S+)*) (\w+)(?: (\w+))?(=.*)?\Z", re.DOTALL)
_PLAIN_VALUE = re.compile(rb"=([\w./:+@%,~-]+)\Z")
_UNDEFINED = re.compile(rb"(?m)^(\S+) \(\) \{\n\t# undefined\n\tbuiltin autoload -X(\w+)\n\}$")
"""A function that is loaded at its first call, which has no text yet."""

_TAGGED_LIMIT = re.compile(rb"(?m)^-N 15: .*\n")
"""It bears the ownership tag, which is another one for each process."""

_CONTINUED = (";", "&", "|", ")", "}")
_LONGEST = (128 << 10) // 4 - 64
"""Characters of a script, which may have four bytes each, with what stands before it."""


def usable(script: str) -> bool:
    """See `ShellKind`: no script that is an error behind a semicolon."""
    # The kernel takes no longer argument than MAX_ARG_STRLEN.
    return not script.lstrip(" \t").startswith(_CONTINUED) and len(script) < _LONGEST


def dump_script(*, count_processes: bool) -> str:
    """See `ShellKind`."""
    return completed(DUMP, count_processes=count_processes)


def parsed(output: bytes, errors: bytes) -> dict[bytes, bytes]:
    """See `ShellKind`."""
    found = sections(output, errors)
    return comparable(found, _variables(found), _TAGGED_LIMIT)


def difference(plain: Dump, login: Dump, dropped: Callable[[str], bool]) -> bytes:
    """See `ShellKind`."""
    require_restorable(plain, login, _EQUAL)
    before, after = _variables(plain), _variables(login)
    require_kept(before, after, dropped)
    loaded = set(plain[b"modules"].splitlines())
    lines = [line for line in login[b"modules"].splitlines() if line not in loaded]
    if plain[b"folder"] != login[b"folder"]:
        lines.append(b"builtin cd -q -- " + quoted(login[b"folder"]))
    if plain[b"functions"] != login[b"functions"]:
        lines.append(_UNDEFINED.sub(rb"builtin autoload -\2 -- \1", login[b"functions"]))
    lines += changes(before, after)
    lines += [
        login[section] for section in (b"hashed", b"named", b"styles") if plain[section] != login[section]
    ]
    lines.append(b"\\builtin : " + quoted(login[b"last"]))
    return b"\n".join([FIRST_LINES.encode(), *lines, b""])


def strings(dump: Dump) -> dict[str, str]:
    """See `ShellKind`."""
    return plain_values(_variables(dump), _PLAIN_VALUE)


def startup_files(variables: Mapping[str, str]) -> list[str]:
    """See `ShellKind`."""
    folder = variables.get("ZDOTDIR") or variables.get("HOME", "/")
    names = ("zshenv", "zprofile", "zlogin")
    return [f"{place}{name}" for name in names for place in ("/etc/", "/etc/zsh/", os.path.join(folder, "."))]


def launch(fd: int, spec: LaunchSpec) -> LaunchSpec:
    """See `ShellKind`."""
    name, _, script, *arguments = spec.arguments
    sourced = f". /proc/self/fd/{fd};{script}"
    return replace(spec, arguments=(name, "-flc", sourced, *arguments), shared=(fd,))


def _variables(dump: Dump) -> dict[bytes, tuple[bytes, bytes]]:
    """Name → attributes and the statement that sets the variable."""
    found: dict[bytes, tuple[bytes, bytes]] = {}
    for line in dump[b"variables"].split(b"\n"):
        if not line:
            continue
        matched = _VARIABLE.match(line)
        if matched is None:
            raise UnfitError("a variable has several lines")
        command, options, name, tied, _ = matched.groups()
        flags = options.replace(b" ", b"").replace(b"-", b"") + (b"x" if command == b"export" else b"")
        if tied is not None and b"a" in flags:
            # The array of a tied pair. Its value comes with the other one.
            name, flags = tied, flags.translate(None, b"aT")
            line = b"typeset -%b %b" % (flags, name) if flags else b""
        if name not in _CHANGING and not name.startswith(b"__execserver_"):
            found[name] = flags, line
    return found
