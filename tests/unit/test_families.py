"""Handlers of rarer families are made when they are first needed."""

from __future__ import annotations

from typing import Any

import pytest

from execserver.api.families import Families
from execserver.rpc.handlers import Handlers


def answer(caller: Any, params: Any) -> dict[str, Any]:
    return {}


def families_of(made: list[str]) -> Families:
    def make(name: str) -> Handlers:
        made.append(name)
        return {f"{name}/a": answer, f"{name}/b": answer}

    families = Families()
    families["own"] = answer
    for name in ("one", "two"):
        families.put_off((f"{name}/a", f"{name}/b"), lambda name=name: make(name))  # type: ignore[misc]
    return families


def test_a_family_is_made_once_when_one_of_its_methods_is_asked_for() -> None:
    made: list[str] = []
    families = families_of(made)
    assert families["own"] is answer
    assert made == []
    assert families["two/b"] is families["two/a"] is answer
    assert made == ["two"]


def test_the_rest_is_made_at_once() -> None:
    made: list[str] = []
    families = families_of(made)
    assert families["two/b"] is answer
    families.make_all()
    families.make_all()
    assert made == ["two", "one"]
    assert families.keys() == {"own", "one/a", "one/b", "two/a", "two/b"}


def test_what_could_not_be_made_is_tried_again() -> None:
    attempts: list[int] = []

    def make() -> Handlers:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError(5, "Input/output error")
        return {"a": answer}

    families = Families()
    families.put_off(("a",), make)
    with pytest.raises(OSError, match="Input/output"):
        families.make_all()
    assert families["a"] is answer
