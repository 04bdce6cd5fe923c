"""The state of a bash after its profile, and a script that restores it.

`DUMP` is run by a shell in the place of a command and prints all state that a command could see. A snapshot
is the difference between two dumps: of a login shell, and of the same shell without its profile. The new
shell sources the difference before it parses its command (`BASH_ENV`), so that numbers of lines, `$0` and
aliases are those of a login shell. Such a shell's dump has to be that of the login shell in every section;
what a script cannot restore has to be equal from the beginning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
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
__execserver_fd=${BASH_ENV##*/}
exec {__execserver_fd}<&-
unset __execserver_fd
"""
"""Of each snapshot: nothing of it stays open in the command."""

DUMP = r"""__execserver_0=$? __execserver_1=$_ __execserver_2=$- __execserver_3="${PIPESTATUS[*]}"
\builtin printf '%s\0' MARK status "$__execserver_0" statuses "$__execserver_3" last "$__execserver_1" \
flags "$__execserver_2" options "$SHELLOPTS" shopts "$BASHOPTS" arguments "$0 $# $*" background "${!-}" \
folder "$PWD" ifs "$IFS" traps
\builtin trap -p
\builtin set +efuvx
\builtin shopt -u nullglob failglob dotglob nocaseglob
IFS=$' \t\n'
\builtin printf '\0%s\0' umask
\builtin umask
\builtin printf '\0%s\0' soft
\builtin ulimit -Sa
\builtin printf '\0%s\0' hard
\builtin ulimit -Ha
\builtin printf '\0%s\0' hashed
\builtin hash -l
\builtin printf '\0%s\0' completions
\builtin complete -p
\builtin printf '\0%s\0' builtins
\builtin enable -a
\builtin printf '\0%s\0' folders
\builtin dirs -l -p
\builtin printf '\0%s\0' jobs
\builtin jobs -p
\builtin printf '\0%s\0' variables
\builtin declare -p
\builtin printf '\0'
\builtin unset -v GLOBIGNORE
for __execserver_0 in "${!BASH_ALIASES[@]}"; do
\builtin printf '%s\0' "alias:$__execserver_0"
\builtin alias -- "$__execserver_0"
\builtin printf '\0'
done
for __execserver_0 in $(\builtin compgen -A function); do
\builtin printf '%s\0' "function:$__execserver_0"
\builtin declare -f -- "$__execserver_0"
\builtin declare -pF -- "$__execserver_0"
\builtin printf '\0'
done
\builtin printf '%s\0' files
for __execserver_0 in /proc/$$/fd/*; do
[[ -e $__execserver_0 ]] && \builtin printf '%s\n' "${__execserver_0##*/}"
done
\builtin printf '\0%s\0' nice
[[ -r /proc/$$/stat ]] && \builtin read -r __execserver_0 </proc/$$/stat
\builtin set -- ${__execserver_0##*) }
"""

_CHANGING = frozenset(
    b"""_ BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND
    BASH_EXECUTION_STRING BASH_LINENO BASH_MONOSECONDS BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG DIRSTACK
    EPOCHREALTIME EPOCHSECONDS FUNCNAME GROUPS HISTCMD IFS LINENO PIPESTATUS PPID RANDOM SECONDS
    SHELLOPTS SRANDOM""".split()
)
"""Variables that have another value each time, or that stand in another section."""

_VARIABLE = re.compile(rb"declare -(\S+) (\w+)(=.*)?\Z", re.DOTALL)
_TAGGED_LIMIT = re.compile(rb"(?m)^.*-R\) .*\n")
"""It bears the ownership tag, which is another one for each process."""

_PLAIN_VALUE = re.compile(rb'="([^"\\$`]*)"\Z')
_LIMIT = re.compile(rb"(?m)-(\w)\) +(\S+)$")


def usable(script: str) -> bool:
    """See `ShellKind`: `BASH_ENV` is read before the script is looked at."""
    return True


def dump_script(*, count_processes: bool) -> str:
    """See `ShellKind`."""
    return completed(DUMP, count_processes=count_processes)


def parsed(output: bytes, errors: bytes) -> dict[bytes, bytes]:
    """See `ShellKind`."""
    found = sections(output, errors)
    return comparable(found, _variables(found), _TAGGED_LIMIT)


def difference(plain: Dump, login: Dump, dropped: Callable[[str], bool]) -> bytes:
    """See `ShellKind`."""
    require_restorable(plain, login)
    before, after = _variables(plain), _variables(login)
    require_kept(before, after, dropped)
    lines = [
        *_limits(plain, login),
        *_functions(plain, login),
        *changes(before, after),
        *_aliases(plain, login),
    ]
    if plain[b"folder"] != login[b"folder"]:
        # First: it sets OLDPWD.
        lines.insert(0, b"\\builtin cd -- " + quoted(login[b"folder"]))
    for section in (b"hashed", b"completions"):
        if plain[section] != login[section]:
            lines.append(login[section])
    lines += _options(plain, login)
    if plain[b"ifs"] != login[b"ifs"]:
        lines.append(b"IFS=" + quoted(login[b"ifs"]))
    lines += _last_command(login)
    return b"\n".join([FIRST_LINES.encode(), *lines, b""])


def strings(dump: Dump) -> dict[str, str]:
    """See `ShellKind`."""
    return plain_values(_variables(dump), _PLAIN_VALUE)


def startup_files(variables: Mapping[str, str]) -> list[str]:
    """See `ShellKind`."""
    home = variables.get("HOME", "/")
    personal = [os.path.join(home, name) for name in (".bash_profile", ".bash_login", ".profile")]
    return ["/etc/profile", *personal, *filter(None, [variables.get("BASH_ENV")])]


def launch(fd: int, spec: LaunchSpec) -> LaunchSpec:
    """See `ShellKind`."""
    name, *arguments = spec.arguments
    return replace(
        spec,
        arguments=(name, "--noprofile", *arguments),
        environment={**spec.environment, "BASH_ENV": f"/proc/self/fd/{fd}"},
        shared=(fd,),
    )


def _variables(dump: Dump) -> dict[bytes, tuple[bytes, bytes]]:
    """Name → attributes and the statement that sets the variable."""
    found: dict[bytes, tuple[bytes, bytes]] = {}
    for line in dump[b"variables"].splitlines():
        matched = _VARIABLE.match(line)
        if matched is None:
            raise UnfitError("a variable has several lines, which only bash 5 and later print as one")
        flags, name, _ = matched.groups()
        if name not in _CHANGING and not name.startswith(b"__execserver_"):
            found[name] = flags, line
    return found


def _functions(plain: Dump, login: Dump) -> list[bytes]:
    lines = []
    for section in sorted({*plain, *login}):
        kind, _, name = section.partition(b":")
        if kind != b"function" or plain.get(section) == login.get(section):
            continue
        if section in plain:
            lines.append(b"\\builtin unset -f -- " + quoted(name))
        if section in login:
            text, _, attributes = login[section].rstrip(b"\n").rpartition(b"\n")
            # Without attributes it would print the function.
            lines += [text] if attributes.startswith(b"declare -f ") else [text, attributes]
    # Before all options, in which its text might mean something else; `extglob` only makes more of it valid.
    return [b"\\builtin shopt -s extglob", *lines, b"\\builtin shopt -u extglob"] if lines else []


def _aliases(plain: Dump, login: Dump) -> Iterator[bytes]:
    for section in sorted({*plain, *login}):
        kind, _, name = section.partition(b":")
        if kind == b"alias" and plain.get(section) != login.get(section):
            yield login[section] if section in login else b"\\builtin unalias -- " + quoted(name)


def _options(plain: Dump, login: Dump) -> Iterator[bytes]:
    for section, command in ((b"shopts", b"\\builtin shopt -%c %b"), (b"options", b"\\builtin set %co %b")):
        old, new = (set(dump[section].split(b":")) for dump in (plain, login))
        signs = b"us" if section == b"shopts" else b"+-"
        yield from (command % (signs[0], name) for name in sorted(old - new))
        yield from (command % (signs[1], name) for name in sorted(new - old))
    letters = {*login[b"flags"]} ^ {*plain[b"flags"]}
    if letters - set(b"aefknptuvxBCEHPT"):
        raise UnfitError("it sets an option that only the start of a shell can set")


def _last_command(login: Dump) -> Iterator[bytes]:
    """Leaves `$_`, `$?` and `PIPESTATUS`. `errexit` minds neither a condition nor the left of `&&`."""
    last, statuses = quoted(login[b"last"]), login[b"statuses"].split()
    if statuses == [b"1"]:
        command = b"\\builtin false " + last
    else:
        yield b"\\builtin : " + last
        if statuses == [b"0"]:
            return
        command = b" | ".join(b"(exit %b)" % status for status in statuses)
    if login[b"status"] != b"0":
        yield command + b" && :"
    elif set(statuses) == {b"0"}:
        yield command
    else:
        yield b"if " + command + b"; then :; fi"


def _limits(plain: Dump, login: Dump) -> Iterator[bytes]:
    for section, letter in ((b"soft", b"S"), (b"hard", b"H")):
        old, new = (dict(_LIMIT.findall(dump[section])) for dump in (plain, login))
        for name, value in new.items():
            if old.get(name) != value:
                yield b"\\builtin ulimit -%b%b %b" % (letter, name, value)
    if plain[b"umask"] != login[b"umask"]:
        yield b"\\builtin umask " + login[b"umask"].strip()
