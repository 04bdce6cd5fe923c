"""Lines of the log, on stderr."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

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


HOLDING = """
import json, sys, time
from execserver.telemetry import logs
writer = logs.configure("info", "json", hold=True)
log = logs.Logger(connection=1)
log.debug("nobody wants to know")
log.info("first", session="s")
print("structlog" in sys.modules)
before = time.time()
time.sleep(0.01)
{act}
log.info("last")
writer.flush(10)
print(before)
"""


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("logs.begin()", [("first", "info"), ("last", "info")]),
        ("log.warning('wrong')", [("first", "info"), ("wrong", "warning"), ("last", "info")]),
    ],
)
def test_lines_are_held_until_the_library_is_loaded_and_keep_their_order_and_time(
    act: str, expected: list[tuple[str, str]]
) -> None:
    command = [sys.executable, "-I", "-c", HOLDING.format(act=act)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded, before = said.stdout.split()
    assert loaded == "False"
    lines = [json.loads(line) for line in said.stderr.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == expected
    assert list(lines[0]) == ["connection", "session", "event", "level", "timestamp"]
    first = datetime.fromisoformat(lines[0]["timestamp"])
    assert first.timestamp() <= float(before) < datetime.fromisoformat(lines[1]["timestamp"]).timestamp()
