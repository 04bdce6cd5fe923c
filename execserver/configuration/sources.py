"""The sources of settings: flags, variables and the configuration file, each with checked values and their
origins.

Every source is checked as a whole, also values that another source overrides: an error should not stay hidden
until a flag is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from execserver.configuration.model import PREFIX
from execserver.configuration.options import OPTIONS
from execserver.relay.executor.options import TOKEN_VARIABLE
from execserver.supervisor import config_file
from execserver.supervisor.packets import CHANNEL_VARIABLE

_OTHER_VARIABLES = frozenset(
    {
        config_file.CONFIG_VARIABLE,
        CHANNEL_VARIABLE,
        TOKEN_VARIABLE,
        "EXECSERVER_URL",  # the client's, whose children daemons may be
        "EXECSERVER_TOKEN",
        "EXECSERVER_TOKEN_FILE",
        "EXECSERVER_EXECUTOR_KEY_SHA256",
        "EXECSERVER_CLIENT_KEY_FILE",
        "EXECSERVER_FUZZ_SEED",  # the tests'
        "EXECSERVER_SOAK_COMMANDS",
        "EXECSERVER_TEST_COMMAND",
        "EXECSERVER_VECTORS",
    }
)


class Source:
    """One source: `values` by name, and `problems` as sentences that begin with the exact place."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[str] = []

    def origin(self, name: str) -> str:
        """The place of a value, for `execserver config show`."""
        raise NotImplementedError


class FlagSource(Source):
    """The command line.

    Args:
        flags: the given settings, by name. Scalars are checked already (`add_flags`).
        folder: the base of relative file names.
    """

    def __init__(self, flags: Mapping[str, Any], folder: str) -> None:
        super().__init__()
        for name, given in flags.items():
            option = OPTIONS[name]
            try:
                value = option.validated(given) if option.repeated else given
            except ValueError as error:
                # The supervisor's text names the flag already.
                self.problems.append(str(error) if option.flag in str(error) else f"{option.flag}: {error}")
            else:
                self.values[name] = _absolute(value, folder)

    def origin(self, name: str) -> str:
        """`flag --NAME`."""
        return f"flag {OPTIONS[name].flag}"


class EnvironmentSource(Source):
    """Variables `EXECSERVER_NAME`. Lists are separated by spaces; an empty variable counts as missing."""

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        super().__init__()
        for name, option in OPTIONS.items():
            text = environment.get(option.variable, "").strip()
            if not text:
                continue
            try:
                value = option.validated(text.split() if option.repeated else text)
            except ValueError as error:
                self.problems.append(f"{option.variable}: {error}")
            else:
                self.values[name] = _absolute(value, folder)
        known = {option.variable for option in OPTIONS.values()}
        self.warnings = [
            f"the variable {variable} means nothing{_suggestion(variable, known, PREFIX)}"
            for variable in sorted(environment)
            if variable.startswith(PREFIX) and variable not in known | _OTHER_VARIABLES
        ]

    def origin(self, name: str) -> str:
        """`environment EXECSERVER_NAME`."""
        return f"environment {OPTIONS[name].variable}"


class FileSource(Source):
    """A TOML file whose top-level keys are the settings' names.

    Args:
        path: the file; None for no file. Its folder is the base of relative file names.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._path = path
        if path is None:
            return
        try:
            self._text = config_file.read(path)
            document = config_file.parse(path, self._text)
        except config_file.ConfigFileError as error:
            self.problems.append(str(error))
            return
        for key, given in document.items():
            try:
                self.values[key] = _absolute(self._validated(key, given), os.path.dirname(path))
            except ValueError as error:
                self.problems.append(f"{self._place(key)}: {error}")

    def origin(self, name: str) -> str:
        """`file PATH:LINE`."""
        return f"file {self._place(name)}"

    def _validated(self, key: str, given: Any) -> Any:
        if key not in OPTIONS:
            raise ValueError(f"unknown key {key!r}{_suggestion(key, OPTIONS)}")
        try:
            return OPTIONS[key].validated_strictly(given)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None

    def _place(self, key: str) -> str:
        return f"{self._path}:{self._lines[key]}"

    @cached_property
    def _lines(self) -> dict[str, int]:
        return lines_of_keys(self._text)


def _absolute(value: Any, folder: str) -> Any:
    return Path(folder) / value if isinstance(value, Path) else value


def _suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    from difflib import get_close_matches  # for mistakes only

    # Compared without the common prefix, which would make all names similar.
    candidates = [each.removeprefix(prefix) for each in known]
    close = get_close_matches(name.removeprefix(prefix), candidates, n=1)
    return f"; did you mean {prefix}{close[0]}?" if close else "; `execserver config show` names them all"


def lines_of_keys(text: str) -> dict[str, int]:
    """The line of each top-level key, including tables and dotted keys, counted from 1.

    tomllib gives no positions. So the text is parsed line by line: lines that parse together are one
    statement, blank or a comment. Inside a string or list of several lines no piece parses, so text in there
    is never mistaken for a key.

    Args:
        text: valid TOML.
    """
    import tomllib  # not at the start of every server

    lines: dict[str, int] = {}
    statement, start, in_table = "", 1, False
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        try:
            keys = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        is_header = statement.lstrip(" \t").startswith("[")
        in_table = in_table or is_header
        if is_header or not in_table:
            for key in keys:
                lines.setdefault(key, start)
        statement, start = "", number + 1
    return lines
