"""One token as the token file has it: what may stand there, and what each member must be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from execprotocol.relay.contract import ContractError, check_environment_id

Role = Literal["executor", "client"]
ROLES: tuple[Role, ...] = get_args(Role)

MAX_NOTE_CHARACTERS = 200
"""Of a token's note: it stands in one line of a list."""

_ID = re.compile(r"[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEMBERS = ("id", "sha256", "role", "environments", "created", "expires", "note")


class RecordFault(Exception):
    """A value that a token cannot have; the message names the member."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token.

    Args:
        id: 8 hexadecimal digits, to name it by.
        sha256: of the token, 64 hexadecimal digits.
        role: what it may be used for.
        environments: where, without repetition.
        created: seconds since 1970.
        expires: the same; None: never.
        note: for people.
    """

    id: str
    sha256: str
    role: Role
    environments: tuple[str, ...]
    created: int
    expires: int | None
    note: str

    def expired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.expires is not None and now >= self.expires

    def to_json(self) -> dict[str, object]:
        """As the file has it."""
        return {name: getattr(self, name) for name in _MEMBERS}

    @classmethod
    def from_json(cls, value: object) -> Token:
        """Read one entry of the file.

        Raises:
            RecordFault: which member is wrong.
        """
        if not isinstance(value, dict):
            raise RecordFault("must be an object")
        for name in _MEMBERS:
            if name not in value:
                raise RecordFault(f"`{name}` is missing")
        for name in value:
            if name not in _MEMBERS:
                raise RecordFault(f"`{name[:40]}` is unknown here")
        expires = value["expires"]
        return cls(
            _hexadecimal(value["id"], "id", _ID),
            _hexadecimal(value["sha256"], "sha256", _SHA256),
            check_role(value["role"]),
            check_environments(value["environments"]),
            _time(value["created"], "created"),
            None if expires is None else _time(expires, "expires"),
            check_note(value["note"]),
        )


def check_role(value: object) -> Role:
    """The role, if it is one. Raises RecordFault."""
    for role in ROLES:
        if value == role:
            return role
    raise RecordFault(f"`role` must be {' or '.join(ROLES)}")


def check_environments(value: object) -> tuple[str, ...]:
    """The environment ids, each once. Raises RecordFault."""
    if not isinstance(value, list | tuple) or not value:
        raise RecordFault("`environments` must name one environment or more")
    for each in value:
        if not isinstance(each, str):
            raise RecordFault("`environments` must hold texts")
        try:
            check_environment_id(each)
        except ContractError as error:
            raise RecordFault(f"`environments`: {error}") from None
    return tuple(dict.fromkeys(value))


def check_note(value: object) -> str:
    """The note, if it is one line of characters that can be shown. Raises RecordFault."""
    if not isinstance(value, str) or len(value) > MAX_NOTE_CHARACTERS or not value.isprintable():
        raise RecordFault(f"`note` must be one line of at most {MAX_NOTE_CHARACTERS} printable characters")
    return value


def _hexadecimal(value: object, name: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise RecordFault(f"`{name}` must match {pattern.pattern}")
    return value


def _time(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RecordFault(f"`{name}` must be whole seconds since 1970")
    return value
