"""Lines of the log, on stderr."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from execserver.telemetry import logs


@pytest.fixture
def structlog_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("structlog_as_before")
@pytest.mark.parametrize("form", ["json", "console"])
def test_the_traceback_of_an_error_shows_no_values_of_variables(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    writer = logs.configure("info", form)

    def fail(token: str) -> None:
        raise ValueError(f"a token of {len(token)} characters")

    try:
        fail("xrt_" + "s3cret")
    except ValueError as error:
        logs.Logger().error("it failed", exc_info=error)
    writer.flush(10)

    said = stderr.getvalue()
    assert "a token of 10 characters" in said
    assert "Traceback" in said
    assert "xrt_s3cret" not in said
