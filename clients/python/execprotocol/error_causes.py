"""What lies behind an error: libraries keep the system's own inside theirs."""

from __future__ import annotations

from collections.abc import Iterator


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, the members of a group, and what each was raised from or while, in that order."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from causes_of(member)
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from causes_of(cause)
