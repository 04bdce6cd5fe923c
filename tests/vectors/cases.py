"""The vectors: recorded cases in JSON, from the folder `EXECSERVER_VECTORS`, else `../shared/vectors`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.endpoint import OWN_SERVER
from tests.support.wire import Json

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = "EXECSERVER_VECTORS"

COLUMN = "expect" if OWN_SERVER else "reference"
"""Which results of the battery are to be met. The reference itself meets its own."""


class NoVectorsError(Exception):
    """There is nothing to hold us against. Never a reason to skip."""


def folder() -> Path:
    """Where the vectors are."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else REPOSITORY.parent / "shared" / "vectors"


@dataclass(frozen=True, slots=True)
class Vectors:
    """One file of them."""

    stem: str
    policies: Mapping[str, str]
    cases: tuple[Json, ...]
    rules: str = ""
    """The text of a rule file that holds for all of them."""

    def ids(self, name: Callable[[Json], str]) -> list[str]:
        """The names of the cases for pytest: `stem::name`."""
        return [f"{self.stem}::{name(case)}" for case in self.cases]


def load(stem: str) -> Vectors:
    """Read one file.

    Raises:
        NoVectorsError: it is missing, or has no cases.
    """
    path = folder() / f"{stem}.json"
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise NoVectorsError(
            f"{path}: {error.strerror}; set {VARIABLE} to the folder of the vectors"
        ) from None
    if not content.get("cases"):
        raise NoVectorsError(f"{path}: there is no case in it")
    return Vectors(stem, content.get("policies", {}), tuple(content["cases"]), content.get("rules", ""))


def filled(value: Json, placeholders: Mapping[str, str]) -> Json:
    """A value with `{NAME}` replaced in all its texts. Other braces stay as they are."""
    if isinstance(value, str):
        for name, text in placeholders.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, list):
        return [filled(each, placeholders) for each in value]
    if isinstance(value, dict):
        return {name: filled(each, placeholders) for name, each in value.items()}
    return value
