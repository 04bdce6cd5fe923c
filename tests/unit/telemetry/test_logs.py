"""Lines of the log, on stderr."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import datetime

import pytest

from execserver.supervisor import launch
from execserver.telemetry import logs


@pytest.mark.parametrize("form", ["json", "text", "console"])
def test_the_traceback_of_an_error_shows_no_values_of_variables(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    for name in ("_least", "_writer"):  # so that they are as before afterwards
        monkeypatch.setattr(logs, name, getattr(logs, name))
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


QUEUED = """
import json, sys, time
from execserver.telemetry import logs
writer = logs.configure("info", "json")
log = logs.Logger(connection=1)
log.debug("below the level")
log.info("first", session="s")
before = time.time()
print("structlog" in sys.modules, before)
time.sleep(0.01)
with logs.bound_fields(trace_id="t"):
    log.warning("traced")
try:
    raise ValueError("wrong")
except ValueError:
    log.exception("failed")
writer.flush(10)
"""


def test_lines_are_rendered_later_and_keep_their_order_and_time() -> None:
    said = subprocess.run([sys.executable, "-I", "-c", QUEUED], capture_output=True, text=True, check=True)
    loaded, before = said.stdout.split()
    assert loaded == "False"
    first, traced, failed = (json.loads(line) for line in said.stderr.splitlines())
    assert list(first) == ["connection", "session", "event", "level", "timestamp"]
    assert (first["event"], traced["event"], failed["event"]) == ("first", "traced", "failed")
    assert (first["level"], traced["level"], failed["level"]) == ("info", "warning", "error")
    assert datetime.fromisoformat(first["timestamp"]).timestamp() <= float(before)
    assert datetime.fromisoformat(traced["timestamp"]).timestamp() > float(before)
    assert (first.get("trace_id"), traced["trace_id"]) == (None, "t")
    assert "ValueError: wrong" in failed["exception"]


FULL_TABLE = """
import resource, sys, time
from execserver.telemetry import logs
usual = resource.getrlimit(resource.RLIMIT_NOFILE)
writer = logs.configure("info", "json")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
logs.Logger().info("without a descriptor")
while not writer._dropped:
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_NOFILE, usual)
logs.Logger().info("with one")
writer.flush(10)
"""


def test_a_full_table_of_descriptors_costs_lines_that_are_counted() -> None:
    said = subprocess.run(
        [sys.executable, "-I", "-B", "-c", FULL_TABLE], capture_output=True, text=True, timeout=30
    )
    note, line = said.stderr.splitlines()
    assert note.startswith("(1 log lines dropped")
    assert json.loads(line)["event"] == "with one"


ODD_VALUES = """
from execserver.telemetry import logs
writer = logs.configure("info", FORM)
class Odd:
    def __repr__(self):
        raise KeyError("it has no text")
circle = []
circle.append(circle)
deep = []
for _ in range(100_000):
    deep = [deep]
for value in (Odd(), circle, {b"bytes": 1}, deep, "text"):
    logs.Logger(connection=1).info("said", value=value)
writer.flush(10)
"""


@pytest.mark.parametrize("form", ["json", "text", "console"])
def test_a_value_without_a_text_costs_its_line_the_value_and_not_the_log(form: str) -> None:
    script = ODD_VALUES.replace("FORM", repr(form))
    said = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    lines = [line for line in said.stderr.splitlines() if "said" in line]
    assert len(lines) == 5
    assert all("connection" in line for line in lines)
    assert "KeyError" in lines[0]
    assert "Traceback" not in said.stderr


CONTROLLING = """
from execserver.telemetry import logs
writer = logs.configure("info", "text")
log = logs.Logger()
log.info("\\x1b[31mred\\r", plain="a\\x1b[2J", spaced="b \\x07", listed=["\\x1b]0;title"])
log.info("said", unicode="\\u202e\\x9b31m")
try:
    raise ValueError("\\x1b[1mbold\\x9b1m\\nsecond line")
except ValueError:
    log.exception("failed")
writer.flush(10)
"""


def test_a_line_for_people_cannot_control_their_terminal() -> None:
    said = subprocess.run(
        [sys.executable, "-I", "-c", CONTROLLING], capture_output=True, text=True, check=True
    )
    assert all(char.isprintable() or char == "\n" for char in said.stderr)
    for part in (r"\x1b[31mred\r", r"a\x1b[2J", r"b \x07", r"\u202e\x9b31m", r"\x1b]0;title"):
        assert part in said.stderr
    assert r"\x1b[1mbold\x9b1m" + "\nsecond line" in said.stderr


def test_a_line_of_the_supervisor_cannot_control_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    launch.report("cannot bind /tmp/\x1b[2J\x9b\x7f\t/é")
    assert capfd.readouterr().err == r"execserver: cannot bind /tmp/\x1b[2J\x9b\x7f\x09/é" + "\n"


BURST = """
import sys
from execserver.telemetry import logs
writer = logs.configure("info", "json")
for number in range(20_000):
    logs.Logger().info("burst", number=number)
writer.flush(30)
"""


def test_what_is_queued_of_a_burst_is_written_before_the_end() -> None:
    said = subprocess.run([sys.executable, "-I", "-c", BURST], capture_output=True, text=True, check=True)
    numbers = [json.loads(line)["number"] for line in said.stderr.splitlines() if line.startswith("{")]
    assert numbers[:10_000] == list(range(10_000))
