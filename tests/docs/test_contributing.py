"""The recipes of CONTRIBUTING.md, followed step by step in a copy of the repository.

The page says which files a step touches and what to run; what is written into the files stands here. A recipe
that names another file than the one that is needed fails.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.background import copy_repository
from tests.docs.pages import ROOT

PAGE = ROOT / "CONTRIBUTING.md"

RUN_SECONDS = 110.0

_STEP = re.compile(r"^\d\. (.*(?:\n   .*)*)", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


class Step(NamedTuple):
    """One step of a recipe."""

    file: str
    commands: list[str]

    @classmethod
    def parse(cls, text: str) -> Step:
        first, *others = _CODE.findall(" ".join(text.split()))
        return cls(first, [each for each in others if each.startswith(("make ", ".venv/bin/"))])


class Edit(NamedTuple):
    """What a step writes: the text is added behind a line, or at the end of a file."""

    text: str
    behind: str | None = None
    instead: bool = False
    """Whether the text replaces that line."""


def recipe(heading: str) -> list[Step]:
    """The steps below a heading of the page."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"no heading {heading!r}"
    return [Step.parse(each[1]) for each in _STEP.finditer(section[1])]


METHOD = [
    Edit('''

class Clock(TypedDict):
    """Say what time it is at the executor."""

    unixSeconds: float
    """Seconds since 1970."""
'''),
    Edit(
        """        Method(
            "environment/clock", "environment clock", environment.NoParams, environment.Clock, extension=True
        ),
""",
        behind="    for method in (",
    ),
    Edit(
        '        "environment/clock": lambda caller, params: {"unixSeconds": time.time()},',
        behind="    return {",
    ),
    Edit(
        "- **D15.** `environment/clock` answers `{unixSeconds}`. *Differs from the reference*: it has none.",
        behind="- **D8.**",
    ),
    Edit("""import time

import pytest

from tests.conformance.endpoint import Endpoint


@pytest.mark.statement("D15")
def test_the_clock_is_that_of_the_executor(endpoint: Endpoint) -> None:
    before = time.time()
    answered = endpoint.connect(extensions=True).call("environment/clock")
    assert before <= answered["unixSeconds"] <= time.time()
"""),
]

SETTING = [
    Edit(
        """    switch_interval: Annotated[
        float,
        _option("how long a thread runs", group=LIMITS, metavar="S", unit="seconds", gt=0, lt=60),
    ] = 0.0005""",
        behind="    ] = 80.0",
    ),
    Edit(
        "    sys.setswitchinterval(config.switch_interval)", "    sys.setswitchinterval(SWITCH", instead=True
    ),
    Edit("\nOn a machine with many cores a longer `switch_interval` may help.\n"),
    Edit("""

def test_the_switch_interval_is_short_and_above_zero() -> None:
    assert Settings().switch_interval == 0.0005
    with pytest.raises(SettingsError, match="above 0"):
        load({}, {"EXECSERVER_SWITCH_INTERVAL": "0"}, NO_FILE)
"""),
    Edit("""from tests.conftest import StartServer


def test_a_daemon_takes_it(start_server: StartServer) -> None:
    assert start_server("ws://127.0.0.1:0", "--switch-interval", "0.01").url
"""),
]

COMMAND = [
    Edit('''"""`execserver uptime`: how long the server has run."""

from __future__ import annotations

from execclient.commands.daemon import DaemonOptions


async def uptime(daemon: DaemonOptions) -> int:
    """Print the seconds."""
    async with daemon.connect() as executor:
        health = await executor.call("server/health", {})
    print(health["uptimeSeconds"], flush=True)
    return 0
'''),
    Edit("""

def _uptime(options: Namespace) -> int:
    from execclient.commands.failures import perform
    from execclient.commands.uptime import uptime

    return perform(lambda: uptime(daemon_of(options)))


UPTIME = Command(
    "print for how long the server has run",
    "Print for how many seconds the server has run.",
    "[OPTIONS]",
    add_daemon,
    _uptime,
)
"""),
    Edit('    "uptime": process_commands.UPTIME,', behind="COMMANDS = {"),
    Edit("\n### `execserver uptime`\n\nPrints for how many seconds the server has run.\n"),
    Edit("""from tests.integration.commands.conftest import CommandLine


def test_the_uptime_is_printed_and_the_help_lists_it(execserver: CommandLine) -> None:
    done = execserver("uptime")
    assert done.stderr == b""
    assert float(done.stdout) > 0
    assert b"uptime" in execserver("--help").stdout
"""),
]

SANDBOX_RULE = [
    Edit("\nThe execution domain of a process (`personality`) cannot be changed in a sandbox.\n"),
    Edit('    "personality",  # it switches address space randomization off', behind="ALWAYS_REFUSED = ("),
    Edit(
        '_PERSONALITY = {"x86_64": 135, "aarch64": 92}\n'
        "ARCHITECTURES = MappingProxyType({\n"
        "    machine: msgspec.structs.replace(\n"
        '        each, numbers=MappingProxyType({**each.numbers, "personality": _PERSONALITY[machine]})\n'
        "    )\n"
        "    for machine, each in ARCHITECTURES.items()\n"
        "})\n"
    ),
    Edit(
        'NUMBERS["x86_64"]["personality"], NUMBERS["aarch64"]["personality"] = 135, 92\n'
        "\n\n"
        "def test_the_personality_stays(machine: str) -> None:\n"
        "    for which in FILTERS:\n"
        '        assert verdict(machine, which, "personality", 0) == seccomp.REFUSE\n'
    ),
    Edit(
        '    _py("personality", FILES, "raise SystemExit(ctypes.CDLL(None).personality(0x0040000) == -1)"),',
        behind='    _py("the kernel\'s key store"',
    ),
]

RECIPES = {
    "Add a method": METHOD,
    "Add a setting": SETTING,
    "Add a command": COMMAND,
    "Add a sandbox rule": SANDBOX_RULE,
}

IMPORTS = {"execserver/api/environment.py": "\nimport time"}
"""A line that the text of a step needs at the top of its file."""


def test_a_recipe_has_five_steps_that_name_files() -> None:
    for heading, edits in RECIPES.items():
        steps = recipe(heading)
        assert len(steps) == len(edits) == 5
        for step in steps:
            made = Path(step.file).name.startswith(("test_", "uptime"))
            assert (ROOT / step.file).is_file() or made, step.file


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contributing") / "execserver"
    copy_repository(folder)
    (folder / ".venv" / ".ready").touch()
    return folder


@pytest.mark.timeout(2 * RUN_SECONDS)
@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_works(heading: str, copy: Path) -> None:
    for step, edit in zip(recipe(heading), RECIPES[heading], strict=True):
        write(copy / step.file, edit)
        if step.file in IMPORTS:
            write(copy / step.file, Edit(IMPORTS[step.file], behind="from __future__"))
        for command in step.commands:
            run(command, copy)


def write(file: Path, edit: Edit) -> None:
    lines = file.read_text().splitlines() if file.exists() else []
    if edit.behind is None:
        lines += edit.text.splitlines()
    else:
        (place,) = (number for number, line in enumerate(lines) if line.startswith(edit.behind))
        lines[place + (not edit.instead) : place + 1] = edit.text.splitlines()
    file.write_text("\n".join(lines) + "\n")


def run(command: str, folder: Path) -> None:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST"))},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-5000:]}{done.stderr[-5000:]}"
    if "pytest" in command:
        assert re.search(r"\b[1-9]\d* passed", done.stdout)


def folders(row: str) -> list[str]:
    """What the first cell of a row of the map names; names without a slash are beside the first one."""
    first, *others = _CODE.findall(row.split("|")[1])
    return [
        first,
        *(each if "/" in each or "/" not in first else f"{Path(first).parent}/{each}" for each in others),
    ]


def test_the_map_has_every_folder_and_no_other() -> None:
    section = PAGE.read_text().partition("## Where things are")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    mapped = {folder for row in rows for folder in folders(row)}
    packages = ("execserver", "clients/python/execclient")
    there = {
        str(each.parent.relative_to(ROOT))
        for base in packages
        for each in (ROOT / base).glob("*/__init__.py")
    }

    assert not [folder for folder in mapped if not (ROOT / folder).exists()]
    assert there <= mapped
