"""The flags of `serve` and `config show`, made from the settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from execserver.configuration.options import OPTIONS, Option
from execserver.supervisor.config_file import CONFIG_VARIABLE, FLAG

_CONFIG_HELP = f"""\
the configuration file, TOML with the names of these options as keys; empty: none (default: {CONFIG_VARIABLE},
else $XDG_CONFIG_HOME/execserver/config.toml, else /etc/execserver/config.toml, if there is one)"""

EPILOG = """\
Every option can also be given as a variable, EXECSERVER_SESSION_TTL for --session-ttl (lists separated by
spaces), and in the configuration file, session_ttl = 80. A flag beats the variable, which beats the file.
`execserver config show` prints what holds and why."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting. What was not given leaves no attribute."""
    parser.add_argument(FLAG, metavar="PATH", help=_CONFIG_HELP)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add(groups[option.group], option)


def given(namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings that were on the command line, by their names."""
    return {name: value for name, value in vars(namespace).items() if name in OPTIONS}


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    common: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": _help(option)}
    if option.type is bool:
        # With --no-…, because a flag must be able to overrule a file.
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **common)
    elif option.repeated:
        # Checked as a whole, later: what it means may depend on the other values.
        group.add_argument(option.flag, action="append", metavar=option.metavar, **common)
    else:
        metavar = option.metavar or f"{{{','.join(option.choices)}}}"
        group.add_argument(option.flag, type=_type(option), metavar=metavar, **common)


def _type(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return option.validated(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _help(option: Option) -> str:
    unit = f", in {option.unit}" if option.unit and option.unit != "bytes" else ""
    repeated = "; may be repeated" if option.repeated else ""
    default = ""
    if option.unset or option.default not in (None, ()):
        default = f" (default: {option.shown(option.default)})"
    return (option.description + unit + repeated + default).replace("%", "%%")
