"""Names of pools, of their members, and labels. The module imports nothing: the supervisor loads it, too.

The executors of a pool share a name; the environment id of each is `NAME--FP16`, where FP16 are the first 16
hexadecimal digits of its key's fingerprint. `docs/protocol.md`, "Pools".
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `spawning.py`
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SEPARATOR, DIGITS = "--", 16

MAX_NAME = 256 - len(SEPARATOR) - DIGITS
"""Characters of a pool's name: with the end of a member's id, as many as an environment id may have."""

MAX_LABELS = 32
"""Of one executor, and of one request for an executor."""

MAX_LABEL = 63
"""Characters of a label's name, and of its value. As in Kubernetes, without its prefixes."""

MAX_CAPACITY = 1_000_000

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
"""Of names of pools, and of ids of environments. The module `string` would delay each daemon by 5 ms."""

_HEXADECIMAL = frozenset("0123456789abcdef")
_LABEL = NAME_CHARACTERS | {"."}


def pool_of(environment_id: str) -> str | None:
    """The pool of a member's environment id; None for any other id."""
    name, _, digits = environment_id.rpartition(SEPARATOR)
    is_member = bool(name) and len(digits) == DIGITS and _HEXADECIMAL.issuperset(digits)
    return name if is_member else None


def member_id(pool: str, fingerprint: str) -> str:
    """The environment id of the member with a key of this fingerprint."""
    return f"{pool}{SEPARATOR}{fingerprint[:DIGITS]}"


def check_pool_name(text: str) -> str:
    """Return the name of a pool if it is valid.

    Raises:
        ValueError: it is not; the message says what is.
    """
    if not 1 <= len(text) <= MAX_NAME or not NAME_CHARACTERS.issuperset(text):
        raise ValueError(f"must be 1 to {MAX_NAME} letters, digits, - or _, not {text[:40]!r}")
    if pool_of(text) is not None:
        raise ValueError(f"must not end with -- and {DIGITS} hexadecimal digits, as a member's id does")
    return text


def check_labels(labels: Mapping[str, str | None]) -> None:
    """Check labels, or a request for some; a value of None requests the name with any value.

    Raises:
        ValueError: there are too many, or one is invalid; the message says what is valid.
    """
    if len(labels) > MAX_LABELS:
        raise ValueError(f"must be at most {MAX_LABELS} labels")
    for name, value in labels.items():
        if not 1 <= len(name) <= MAX_LABEL or not _LABEL.issuperset(name):
            raise ValueError(
                f"must have names of 1 to {MAX_LABEL} letters, digits, -, _ or ., not {name[:40]!r}"
            )
        if value is not None and (len(value) > MAX_LABEL or not _LABEL.issuperset(value)):
            raise ValueError(
                f"must have values of at most {MAX_LABEL} letters, digits, -, _ or ., not {value[:40]!r}"
            )


def parse_labels(texts: Iterable[str]) -> dict[str, str | None]:
    """Labels written as `NAME=VALUE`, or as `NAME`, which becomes None.

    Raises:
        ValueError: as `check_labels`, or a name has two values.
    """
    labels: dict[str, str | None] = {}
    for text in texts:
        name, equals, given = text.partition("=")
        value = given if equals else None
        if labels.setdefault(name, value) != value:
            raise ValueError(f"must have one value for each name, not two for {name[:40]!r}")
    check_labels(labels)
    return labels
