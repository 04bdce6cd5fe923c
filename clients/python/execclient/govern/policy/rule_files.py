"""Finds rule files and reads the rules in them.

    # policy version: 1
    prefix_rule(pattern = ["git", ["status", "diff"]])
    prefix_rule(pattern = ["git", "push"], decision = "prompt", justification = "leaves this machine")
    host_executable(name = "git", paths = ["/usr/bin/git"])

Rules kept in this file:

1. A file that cannot be used is an error: a policy never lacks a part of its rules.
2. Files are read in order. A later `host_executable` replaces an earlier one of the same name; rules are only
   added.
3. The version is a comment, so that engines without versions can read the same files. A file without a
   version has the newest version that is known here. A file of a newer version is refused, since an unknown
   rule could be one that forbids; a file of an older version is read with a warning.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from execclient.errors import PolicyError
from execclient.govern.policy import rule_statements
from execclient.govern.policy.rule_statements import Examples, StarlarkValue, StatementError
from execclient.govern.policy.rules import NO_RULES, NetworkRule, PrefixRule, RuleSet, RuleSource
from execclient.govern.policy.starlark_files import run_rule_file

VERSION = 1
"""The version of the language of rule files."""

MAX_FILE_BYTES = 1 << 20
"""People write rules: a larger file is not a rule file."""

FOLDER = "rules"
SUFFIX = ".rules"

PROJECT_FOLDER = ".codex"
"""The folder of a project's rule files, as in the reference."""

_VERSION_LINE = re.compile(r"#\s*policy[ _-]version\s*[:=]\s*(.*?)\s*")


class PolicyWarning(UserWarning):
    """A rule file can be used, but its author may have meant something else."""


def parse_rules(text: str, file: str, *, known: RuleSet = NO_RULES) -> RuleSet:
    """The rules of one file.

    Args:
        text: its content.
        file: its name, for errors and as the source of the rules.
        known: the rules of earlier files; examples are checked with their host executables.

    Raises:
        PolicyError: it cannot be used, or Starlark is missing.

    Warns:
        PolicyWarning: it was written for an older version.
    """
    text = text.removeprefix("\ufeff")  # the byte order mark of some editors
    _check_version(text, file)
    reading = _Reading(file)
    run_rule_file(text, file, reading.state)
    rules = reading.rules()
    reading.check_examples(known.plus(rules))
    return rules


def load_rules(files: Sequence[Path]) -> RuleSet:
    """The rules of several files, in their order.

    Raises:
        PolicyError: one of them cannot be read or used.
    """
    rules = NO_RULES
    for file in files:
        rules = rules.plus(parse_rules(_read(file), str(file), known=rules))
    return rules


def find_rule_files(home: Path, projects: Sequence[Path] = ()) -> list[Path]:
    """The existing rule files: those of the home, then those of each project, sorted by name.

    Args:
        home: a folder with `rules/*.rules`.
        projects: folders whose rules the host trusts, with `.codex/rules/*.rules`.

    Raises:
        PolicyError: a folder exists and cannot be listed.
    """
    folders = [home / FOLDER, *(project / PROJECT_FOLDER / FOLDER for project in projects)]
    return [file for folder in folders for file in _rule_files(folder)]


class _Reading:
    """The statements of one file so far."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._prefix_rules: list[PrefixRule] = []
        self._host_executables: dict[str, tuple[str, ...]] = {}
        self._network_rules: list[NetworkRule] = []
        self._examples: list[tuple[Examples, int | None]] = []

    def state(self, statement: str, values: Sequence[StarlarkValue], line: int | None) -> None:
        """Add a statement."""
        source = RuleSource(self._file, line)
        if statement == "prefix_rule":
            examples = rule_statements.prefix_rule(values, source)
            self._prefix_rules.extend(examples.rules)
            self._examples.append((examples, line))
        elif statement == "host_executable":
            name, paths = rule_statements.host_executable(values)
            self._host_executables[name] = paths
        else:
            self._network_rules.append(rule_statements.network_rule(values, source))

    def rules(self) -> RuleSet:
        """The rules of all statements."""
        return RuleSet(tuple(self._prefix_rules), dict(self._host_executables), tuple(self._network_rules))

    def check_examples(self, known: RuleSet) -> None:
        """Raise `PolicyError` for the first statement whose examples do not hold."""
        for examples, line in self._examples:
            try:
                examples.check(known)
            except StatementError as error:
                raise PolicyError(self._file, line, str(error)) from None


def _check_version(text: str, file: str) -> None:
    for number, line in enumerate(text.split("\n"), 1):  # `splitlines` also splits within a comment
        if line.strip() and not line.startswith("#"):
            return  # the version must be above the first statement
        found = _VERSION_LINE.fullmatch(line)
        if found is None:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", found[1]):
            raise PolicyError(file, number, f"policy version: expected a number, got {found[1]!r}")
        version = int(found[1])
        if version > VERSION:
            raise PolicyError(
                file,
                number,
                f"policy version {version}: this program understands {VERSION} and older; "
                "install a newer one, or write the file for the older version",
            )
        if version < VERSION:
            warnings.warn(
                f"{file}:{number}: policy version {version} is older than {VERSION}, by which it is read",
                PolicyWarning,
                stacklevel=3,
            )
        return


def _rule_files(folder: Path) -> list[Path]:
    try:
        # A broken link is listed, too: its target may have forbidden something.
        return sorted(each for each in folder.iterdir() if each.suffix == SUFFIX and not each.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        failure = PolicyError(str(folder), None, f"cannot be listed: {error.strerror}")
        raise failure.about(errno=error.errno) from error


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        failure = PolicyError(str(file), None, f"cannot be read: {error.strerror}")
        raise failure.about(errno=error.errno) from error
    if len(content) > MAX_FILE_BYTES:
        raise PolicyError(str(file), None, f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PolicyError(str(file), line, f"is not UTF-8: {error.reason}") from error
