"""The configuration file: its location, permissions and syntax.

    --config PATH                                must exist; empty: no file
    EXECSERVER_CONFIG                            the same
    $XDG_CONFIG_HOME/execserver/config.toml      ~/.config without the variable
    /etc/execserver/config.toml

The first that applies is *the* file; files are not merged. The supervisor reads only `listen` and the
registry of remote clients from it. The settings model (`configuration/`), which also reads by this module,
defines the keys.
"""

from __future__ import annotations

import os

from execprotocol.trust import UntrustedError, read_trusted

TYPE_CHECKING = False  # as in `spawning.py`
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FLAG = "--config"
CONFIG_VARIABLE = "EXECSERVER_CONFIG"
SYSTEM_PATH = "/etc/execserver/config.toml"


class ConfigFileError(Exception):
    """The file cannot be used; the text names the file, the line if known, and the fix."""


def find(flag: str | None, environment: Mapping[str, str]) -> str | None:
    """The absolute path of the file to read; None when there is none.

    Args:
        flag: the value of `--config`, relative to the working directory; None when not given.
        environment: for `EXECSERVER_CONFIG`, `XDG_CONFIG_HOME` and `HOME`.
    """
    given = environment.get(CONFIG_VARIABLE) if flag is None else flag
    if given is not None:
        return os.path.abspath(given) if given else None
    return next(filter(_is_there, usual_places(environment)), None)


def _is_there(path: str) -> bool:
    """Whether there is a configuration at a default path.

    A file in a folder that we cannot enter (another user's home folder) is not ours. An empty folder is the
    mount point of a sandbox that may not create the file: of another daemon, or of one that was killed.
    """
    try:
        return bool(os.listdir(path))
    except NotADirectoryError:
        return True
    except OSError:
        return os.path.exists(path)


def usual_places(environment: Mapping[str, str]) -> list[str]:
    """The default paths of the file, in order of priority."""
    base = environment.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # the XDG specification: a relative path is invalid and ignored
        base = f"{(environment.get('HOME') or os.path.expanduser('~')).rstrip('/')}/.config"
    places = [f"{base.rstrip('/')}/execserver/config.toml", SYSTEM_PATH]
    return [place for place in places if place.startswith("/")]


def read(path: str) -> str:
    """The text of the file.

    Raises:
        ConfigFileError: it is missing, not a file, too large, not UTF-8, or writable by others.
    """
    try:
        content = read_trusted(path)
    except UntrustedError as error:
        # The file decides which clients may connect, so a user who can write it can run commands as us.
        raise ConfigFileError(
            f"configuration file {path} decides who may connect: {error}, or name another one with {FLAG}"
        ) from None
    except OSError as error:
        raise ConfigFileError(f"configuration file {path}: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigFileError(f"{path}:{line}: not UTF-8") from None


def parse(path: str, text: str) -> dict[str, object]:
    """The keys and values of TOML.

    Raises:
        ConfigFileError: a syntax error; the text begins with PATH:LINE:COLUMN.
    """
    import tomllib  # takes a millisecond, needed only with a file

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigFileError(f"{path}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise ConfigFileError(f"{path}{_place(str(error), text)}") from None


def document(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    """The keys and values of the file that these arguments and this environment select.

    Raises:
        ConfigFileError: the file cannot be used. The server's error text has more detail.
    """
    path = find(_flag_value(arguments), environment)
    return {} if path is None else parse(path, read(path))


def listen_values(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The `listen` of that file.

    Raises:
        ConfigFileError: as `document`.
    """
    values = document(arguments, environment).get("listen", [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigFileError("listen must be a list of strings")
    return values


def flag_values(flag: str, arguments: Sequence[str], *, hyphens: bool = False) -> Iterator[str | None]:
    """The values of a flag on the command line; None for a missing value.

    Args:
        flag: with its hyphens.
        arguments: the command line.
        hyphens: take a word that begins with a hyphen for a value too, not for the next flag.
    """
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return
        if argument == flag:
            value = next(remaining, None)
            yield value if value is None or hyphens or not value.startswith("-") else None
        elif argument.startswith(f"{flag}="):
            yield argument.removeprefix(f"{flag}=")


def _flag_value(arguments: Sequence[str]) -> str | None:
    """The last `--config`, as the server's parser takes it."""
    found = None
    for found in flag_values(FLAG, arguments):
        if found is None:
            raise ConfigFileError(f"{FLAG} needs a value")
    return found


def _place(message: str, text: str) -> str:
    """`:LINE:COLUMN: reason` from a message of tomllib, which has the position at its end."""
    reason, _, place = message.rpartition(" (at ")
    import re  # takes milliseconds, needed only for a faulty file

    numbers = re.fullmatch(r"line (\d+), column (\d+)\)", place)
    if numbers is not None:
        return f":{numbers[1]}:{numbers[2]}: {reason}"
    if place == "end of document)":
        last = text.rpartition("\n")[2]
        return f":{text.count(chr(10)) + 1}:{len(last) + 1}: {reason} (the file ends here)"
    return f": {message}"
