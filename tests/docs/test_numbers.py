"""The numbers in the explanations are those of the code."""

from __future__ import annotations

import importlib
import re

import pytest
from httpcore._async.http11 import AsyncHTTP11Connection

from execserver.configuration.model import Settings
from tests.docs.pages import ROOT

EXPLANATION = ROOT / "docs" / "explanation"
PAGE = EXPLANATION / "memory.md"

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1}
_ROW = re.compile(r"^\| [^|]+ \| ([\d.]+) ?(KiB|MiB|GiB|s|) \| `([\w.]+)` \|$", re.MULTILINE)


def value_of(dotted: str) -> float:
    """The value of a name, or the default of a field of settings."""
    parts = dotted.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        if parts[split][0].isupper() and len(parts) - split == 2:
            found = getattr(found, parts[split])()  # a class of settings: its defaults
        return float(getattr(found, parts[-1]))
    raise LookupError(dotted)


def rows() -> list[tuple[str, str, str]]:
    return _ROW.findall(PAGE.read_text())


def test_every_row_of_the_tables_is_compared() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    tables = lines.count("| --- | --- | --- |")
    assert len(rows()) == len(lines) - 2 * tables > 30


@pytest.mark.parametrize(("number", "unit", "name"), rows(), ids=[row[2] for row in rows()])
def test_a_number_is_that_of_its_constant(number: str, unit: str, name: str) -> None:
    assert float(number) * UNITS[unit] == value_of(name)


@pytest.mark.parametrize(
    ("page", "sentence", "name", "unit"),
    [
        ("memory.md", r"At most (\d+) MiB of free memory", "execserver.memory._KEPT_BYTES", 1 << 20),
        (
            "output.md",
            r"(\d+) MiB a process",
            "execserver.configuration.model.Settings.retained_output_bytes",
            1 << 20,
        ),
        (
            "output.md",
            r"(\d+) GiB a daemon",
            "execserver.configuration.model.Settings.spool_max_bytes",
            1 << 30,
        ),
        (
            "output.md",
            r"may have (\d+) KiB of unsent events",
            "execserver.sessions.event_stream.WINDOW_BYTES",
            1 << 10,
        ),
        (
            "output.md",
            r"delays a child by (\d+) seconds, once",
            "execserver.sessions.event_stream.GRACE_SECONDS",
            1,
        ),
        ("output.md", r"up to (\d+) of them", "execprotocol.limits.MAX_FILLED_GAP", 1),
        ("sandboxes.md", r"not answered for (\d+) seconds", "execserver.fsworker.client.SILENT_SECONDS", 1),
        ("performance.md", r"at most (\d+) threads", "execserver.filesystem.blocking.MAX_THREADS", 1),
        (
            "architecture.md",
            r"within (\d+) seconds of grace",
            "execserver.supervisor.program.STOP_GRACE_S",
            1,
        ),
    ],
)
def test_a_number_in_a_sentence_is_that_of_its_constant(
    page: str, sentence: str, name: str, unit: int
) -> None:
    text = " ".join((EXPLANATION / page).read_text().split())
    found = re.search(sentence, text)
    assert found, f"{page} does not say {sentence!r}"
    assert int(found[1]) * unit == value_of(name)


def test_constants_that_a_page_names_exist() -> None:
    for page in sorted(EXPLANATION.glob("*.md")):
        for module in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page.read_text()):
            places = ("execserver", "clients/python/execclient", "clients/python", "")
            assert any((ROOT / place / module).is_file() for place in places), f"{page.name}: {module}"


# -- the limits of the wire, and the tables of settings


WIRE = ROOT / "docs" / "protocol.md"
_SETTINGS = "execserver.configuration.model.Settings"

LIMITS: dict[str, list[str | int]] = {
    "line from a client": [
        f"execprotocol.limits.{name}" for name in ("MAX_LINE_BYTES", "MAX_MESSAGE_BYTES", "MAX_FRAME_BYTES")
    ],
    "WebSocket message to a client": [
        "execprotocol.limits.MAX_WEBSOCKET_REPLY_BYTES",
        "execprotocol.limits.WEBSOCKET_FRAGMENT_BYTES",
    ],
    "JSON nesting": ["execprotocol.limits.MAX_JSON_DEPTH", "execprotocol.limits.MAX_JSON_VALUES"],
    "members of objects": [
        f"execprotocol.limits.MAX_JSON_{name}" for name in ("MEMBERS", "QUOTES", "BARE_BYTES")
    ],
    "read at a time": [
        "execserver.transports.websocket_parser.BUFFER_BYTES",
        "execserver.transports.base.READ_BYTES",
        "execserver.transports.websocket_parser.BULK_BYTES",
        "execserver.transports.base.BULK_READ_BYTES",
        "execserver.relay.service.sockets.READ_BYTES",
    ],
    "`limits`: `memoryBytes`": [
        "execprotocol.limits.MIN_MEMORY_LIMIT",
        "execprotocol.limits.MAX_MEMORY_LIMIT",
        1,
        "execprotocol.limits.MAX_PIDS_LIMIT",
        1,
        "execprotocol.limits.MAX_CPU_PERCENT",
        1,
        "execprotocol.limits.MAX_IO_WEIGHT",
    ],
    "requests under way": [],
    "bytes of requests under way": [
        "execserver.rpc.admission.MAX_PENDING_BYTES",
        "execserver.rpc.flow_control.MAX_UNSENT_BYTES",
    ],
    "detached session;": [f"{_SETTINGS}.session_ttl", f"{_SETTINGS}.process_ttl"],
    "detached session at the request": [f"{_SETTINGS}.max_session_ttl"],
    "forgotten processes": [
        "execserver.spool.forgotten.KEPT_OF_A_REASON",
        24,
    ],
    "output kept: a process": [
        f"{_SETTINGS}.retained_output_bytes",
        "execserver.processes.output_log.MAX_CHUNKS",
        f"{_SETTINGS}.spool_max_bytes",
    ],
    "output kept in memory": ["execserver.spool.spool.SpoolLimits.process_memory"],
    "`timeoutMs`": [1, "execprotocol.limits.MAX_TIMEOUT_MS"],
    "output chunk": ["execprotocol.limits.MAX_CHUNK_BYTES", "execprotocol.limits.MAX_PAGE_BYTES"],
    "lost numbers": ["execprotocol.limits.MAX_FILLED_GAP"],
    "output on its way": ["execserver.sessions.event_stream.WINDOW_BYTES"],
    "unsent output of a stream": [
        "execserver.processes.pacing.MAX_UNSENT_BYTES",
        "execprotocol.limits.MAX_PORT_STREAMS",
        "execserver.ports.stream.CONNECT_SECONDS",
    ],
    "remembered write ids": [
        "execprotocol.limits.REMEMBERED_WRITE_IDS",
        "execserver.spool.records.REMEMBERED_WRITES",
    ],
    "a line of input": ["execprotocol.limits.MAX_TERMINAL_LINE_BYTES"],
    "kept of a command line": ["execserver.processes.start_options.MAX_KEPT_ARGV"],
    "terminal": [
        "execprotocol.limits.TTY_ROWS",
        "execprotocol.limits.TTY_COLUMNS",
        1,
        "execprotocol.limits.MAX_TERMINAL_SIDE",
    ],
    "`fs/readFile`": ["execprotocol.limits.MAX_READ_FILE_BYTES", "execprotocol.limits.MAX_BLOCK_BYTES"],
    "handles of a connection": [
        "execprotocol.limits.MAX_FILE_HANDLES",
        "execprotocol.limits.MAX_HANDLE_ID_BYTES",
    ],
    "walk": [f"execprotocol.limits.MAX_WALK_{name}" for name in ("DEPTH", "DIRECTORIES", "ENTRIES")],
    "edits at a time": ["execprotocol.limits.MAX_EDITS"],
    "entries of a batch": ["execprotocol.limits.MAX_BATCH_ENTRIES", "execprotocol.limits.MAX_BATCH_BYTES"],
    "page of a search": [
        f"execprotocol.limits.MAX_{name}" for name in ("FOUND", "SEARCH_PAGE_BYTES", "SEARCH_MS")
    ],
    "searches of a session": [
        "execprotocol.limits.MAX_OPEN_SEARCHES",
        "execserver.search.searches.IDLE_SECONDS",
    ],
    "pattern of a search": [
        "execprotocol.limits.MAX_PATTERN_CHARACTERS",
        "execprotocol.limits.MAX_GLOBS",
        "execprotocol.globs._MAX_ALTERNATIVES",
        "execprotocol.limits.MAX_GLOB_CHARACTERS",
    ],
    "line in a result": [
        "execserver.search.output.MAX_LINE_BYTES",
        "execserver.search.output.MAX_RANGES",
        "execprotocol.limits.MAX_CONTEXT_LINES",
        "execprotocol.limits.MAX_UNREAD",
    ],
    "characters of a path URI": ["execprotocol.path_uri.MAX_URI"],
    "paths of a `fs/watchMissing`": ["execprotocol.limits.MAX_WATCHED_PATHS"],
    "patterns of ignore files of a watch": ["execserver.watching.program.ignore_rules.MAX_PATTERNS"],
    "listed ports of a process": ["execserver.ports.listeners.MAX_LISTENERS"],
    "watches of a session": ["execprotocol.limits.MAX_WATCHES", "execprotocol.limits.MAX_WATCH_ID_BYTES"],
    "kept changes of a watch": [
        "execprotocol.limits.MAX_WATCH_LOG_CHANGES",
        "execprotocol.limits.MAX_WATCH_LOG_BYTES",
    ],
    "changes in one `fs/watchRead`": [
        "execprotocol.limits.MAX_WATCH_CHANGES",
        "execprotocol.limits.MAX_WATCH_PAGE_BYTES",
    ],
    "entries of a polled watch": ["execprotocol.limits.MAX_POLLED_ENTRIES"],
    "paths that the patterns": [
        "execserver.sandbox.glob_search.MAX_MATCHES",
        "execserver.sandbox.glob_search.MAX_SCANNED",
    ],
    "patterns of a sandbox": [
        "execserver.sandbox.glob_patterns.MAX_ALTERNATIVES",
        "execserver.sandbox.glob_patterns.MAX_CHARACTERS",
    ],
    "characters of the patterns": ["execserver.processes.child_environment.MAX_PATTERN_CHARACTERS"],
    "workers for confined": [
        "execserver.fsworker.pool.MAX_WORKERS",
        "execserver.fsworker.client.SILENT_SECONDS",
    ],
    "HTTP body": [
        "execprotocol.limits.MAX_HTTP_BODY_BYTES",
        "execprotocol.limits.MAX_HTTP_HELD_BYTES",
        AsyncHTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE,
    ],
    "HTTP requests": [
        f"execprotocol.limits.MAX_HTTP_{n}" for n in ("RUNNING", "WAITING", "STREAMS", "EXCHANGES")
    ],
    "host of a network request": [
        "execprotocol.limits.MAX_HOST_BYTES",
        "execprotocol.limits.MAX_DECISION_REASON_BYTES",
        "execserver.spool.records.KEPT_NETWORK_DECISIONS",
    ],
    "shell snapshot scope": [256],  # a literal of the model, `protocol/process.py`
    "WebSocket ping": [
        "execserver.transports.accept.PING_SECONDS",
        "execserver.sessions.registry.PROBE_SECONDS",
        "execserver.transports.authentication.DEFAULT_CLOCK_SKEW_SECONDS",
    ],
}
"""What each row of the table says, in its order, by the first words of the row."""

_NUMBER = re.compile(r"2\^(\d+)|(\d[\d,]*)(?: (KiB|MiB|GiB))?")


def numbers_in(text: str) -> list[float]:
    """The numbers of a cell, in bytes, seconds or as they are; not those within code."""
    return [
        2 ** int(power) if power else int(digits.replace(",", "")) * UNITS[unit]
        for power, digits, unit in _NUMBER.findall(re.sub(r"`[^`]*`", "", text))
    ]


def wire_limits() -> list[tuple[str, str]]:
    table = WIRE.read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    found = [tuple(line.strip("| ").split(" | ")) for line in table.splitlines() if line.startswith("| ")]
    return [(name, value) for name, value in found[2:]]


@pytest.mark.parametrize(("what", "value"), wire_limits(), ids=[what for what, _ in wire_limits()])
def test_a_limit_of_the_wire_is_that_of_its_constants(what: str, value: str) -> None:
    begin = next((each for each in LIMITS if what.startswith(each)), None)
    assert begin is not None, f"docs/protocol.md has a new limit: add {what!r} to LIMITS, with its constants"
    expected = [value_of(each) if isinstance(each, str) else each for each in LIMITS[begin]]
    assert numbers_in(value) == expected


def test_every_limit_that_has_a_constant_is_in_the_table() -> None:
    table = [what for what, _ in wire_limits()]
    assert [begin for begin in LIMITS if not any(what.startswith(begin) for what in table)] == []


def test_the_defaults_in_the_table_of_limits_are_those_of_the_settings() -> None:
    page = (ROOT / "docs" / "how-to" / "limits.md").read_text()
    table = re.findall(r"^\| `--([a-z-]+) [NS]` \| ([^|]+) \|", page, re.MULTILINE)
    assert len(table) == 8
    for flag, default in table:
        value = getattr(Settings(), flag.replace("-", "_"))
        assert ([] if value is None else [value]) == numbers_in(default), flag


@pytest.mark.parametrize(
    ("page", "sentence", "names"),
    [
        (
            "how-to/limits.md",
            r"(\S+ MiB) a line, (\S+ MiB) a WebSocket frame, (\S+ MiB) a `fs/readFile`, (\S+) file handles",
            [
                "execprotocol.limits.MAX_LINE_BYTES",
                "execprotocol.limits.MAX_FRAME_BYTES",
                "execprotocol.limits.MAX_READ_FILE_BYTES",
                "execprotocol.limits.MAX_FILE_HANDLES",
            ],
        ),
        (
            "how-to/limits.md",
            r"above (\S+) values, (\S+) members of objects, (\S+) quotation marks or (\S+ MiB) outside",
            [
                "execprotocol.limits.MAX_JSON_VALUES",
                *(f"execprotocol.limits.MAX_JSON_{name}" for name in ("MEMBERS", "QUOTES", "BARE_BYTES")),
            ],
        ),
        (
            "how-to/limits.md",
            r"keeps (\d+) for itself, .* when (\d+) for each process, (\d+) more for one in a sandbox",
            [
                "execserver.processes.executor._FREE_DESCRIPTORS",
                "execserver.processes.executor._DESCRIPTORS_A_PROCESS",
                "execserver.processes.executor._DESCRIPTORS_A_SANDBOX",
            ],
        ),
        (
            "how-to/systemd.md",
            r"(\d+) descriptors each, \d+ in a sandbox",
            ["execserver.processes.executor._DESCRIPTORS_A_PROCESS"],
        ),
        (
            "how-to/sandbox.md",
            r"patterns match more than (\d+) paths",
            ["execserver.sandbox.glob_search.MAX_MATCHES"],
        ),
        (
            "how-to/websocket.md",
            r"shared secret of at least (\d+) bytes",
            ["execserver.transports.authentication.MIN_SECRET_BYTES"],
        ),
        (
            "how-to/websocket.md",
            r"fewer than (\d+) bytes is refused, and one of fewer than (\d+) is served with a warning",
            [
                "execserver.transports.authentication.MIN_TOKEN_BYTES",
                "execserver.transports.authentication.SAFE_TOKEN_BYTES",
            ],
        ),
        (
            "protocol.md",
            r"one of fewer than (\d+) bytes",
            ["execserver.transports.authentication.MIN_TOKEN_BYTES"],
        ),
        (
            "protocol.md",
            r"Patterns that match more than (\d+) paths",
            ["execserver.sandbox.glob_search.MAX_MATCHES"],
        ),
        ("protocol.md", r"A file above (\d+ MiB) is .32600", ["execprotocol.limits.MAX_READ_FILE_BYTES"]),
        (
            "protocol.md",
            r"holds (\d+ MiB) of bodies that do not stream, and (\d+) connections",
            ["execprotocol.limits.MAX_HTTP_HELD_BYTES", "execprotocol.limits.MAX_HTTP_EXCHANGES"],
        ),
        (
            "protocol.md",
            r"WebSocket message above (\d+ KiB) ends",
            ["execprotocol.relay.frames.MAX_FRAME_BYTES"],
        ),
        (
            "reference/command-line.md",
            r"`--session-ttl` \((\d+) s by default",
            [f"{_SETTINGS}.session_ttl"],
        ),
        (
            "../SECURITY.md",
            r"tokens of fewer than (\d+) bytes",
            ["execserver.transports.authentication.MIN_TOKEN_BYTES"],
        ),
    ],
)
def test_a_limit_in_a_sentence_is_that_of_its_constant(page: str, sentence: str, names: list[str]) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    found = re.search(sentence, text)
    assert found, f"{page} does not say {sentence!r}"
    assert [number for group in found.groups() for number in numbers_in(group)] == [
        value_of(name) for name in names
    ]


def test_the_flags_that_the_command_line_names_are_those_of_the_settings() -> None:
    """A flag in a page that the programs do not know would be copied, and refused."""
    known = {f"--{name.replace('_', '-')}" for name in Settings.__struct_fields__} | {"--config"}
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    serve = page.partition("## `execserver serve`")[2].partition("\n### Signals")[0]
    named = set(re.findall(r"`(--[a-z0-9-]+)\b(?!-…)", serve))
    assert named - known - {"--help", "--remote-", "--ws-"} == set()
    assert len(named & known) >= 8
