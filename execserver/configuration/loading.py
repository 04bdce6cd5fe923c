"""Putting the places together: flag, then environment, then file, then default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from execserver.configuration.model import Settings, SettingsError
from execserver.configuration.sources import EnvironmentSource, FileSource, FlagSource, Source
from execserver.supervisor import config_file


class Effective:
    """The settings that hold, and where each comes from.

    Args:
        sources: the places, those that win first.
        file: the configuration file that was read.
        warnings: what the operator should hear.
    """

    def __init__(self, sources: tuple[Source, ...], file: str | None, warnings: list[str]) -> None:
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            merged |= source.values
        self.settings = Settings(**merged)
        self.file = file
        """The configuration file that was read."""
        self.warnings = warnings
        """What the operator should hear, though it stops nothing."""
        self._sources = sources

    def origin(self, name: str) -> str:
        """`flag --x`, `environment EXECSERVER_X`, `file PATH:LINE` or `default`."""
        return next((source.origin(name) for source in self._sources if name in source.values), "default")


def load(flags: Mapping[str, Any], environment: Mapping[str, str], config: str | None = None) -> Effective:
    """Read, check and merge all places.

    Args:
        flags: the settings given on the command line, by their names (`flags.given`).
        environment: the variables.
        config: the value of `--config`; None when not given.

    Raises:
        SettingsError: some place holds what cannot be used. All problems of all places are named.
    """
    folder = os.getcwd()
    path = config_file.find(config, environment)
    variables = EnvironmentSource(environment, folder)
    sources = (FlagSource(flags, folder), variables, FileSource(path))
    problems = [problem for source in sources for problem in source.problems]
    if problems:
        raise SettingsError(problems)
    return Effective(sources, path, variables.warnings)
