"""Both wheels, each installed into an empty environment: what they bring, and that the tutorial works."""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.installing import INSTALL_SECONDS, Wheels, dist, environment, run
from tests.docs.pages import ROOT, TUTORIAL, Block, blocks_of
from tests.docs.reader import reader

pytestmark = [pytest.mark.manual, pytest.mark.timeout(3 * INSTALL_SECONDS)]

EXTRAS = "expect,policy,relay,search"
"""What the manual's pages need beside what is always installed."""

MAX_CLIENT_BYTES = 10_000_000
"""What `pip install execclient` may take on disk, compiled modules and needs included."""

COMMANDS = (
    *("serve", "config", "doctor", "uninstall", "drain", "audit", "relay"),
    *("run", "attach", "ps", "logs", "kill", "cp", "patch", "watch", "console", "policy", "completion"),
)

PAGE = ("index.html", "console.js", "console.css", "favicon.svg", "licenses.txt")
"""The files of the console's page, which `make console` builds."""

TRY_TO_CONNECT = """
from execclient import ExecServerError, UnsupportedUrl
from execclient.sync import connect
try:
    connect({url!r}, token="t", recovery_timeout=1)
except UnsupportedUrl:
    raise
except ExecServerError as error:
    print(error)
"""

NEED_EXTRA = (
    ("ws", TRY_TO_CONNECT.format(url="ws://127.0.0.1:9")),
    ("ws", "import execclient.console"),
    ("relay", TRY_TO_CONNECT.format(url="relay+http://127.0.0.1:9?environment=box")),
    ("tools", "from execclient.tools import Toolset"),
    ("tools", "from execclient.govern.policy import plain_commands; assert plain_commands('ls')"),
    ("policy", "from execclient.govern.policy import parse_rules; parse_rules('x = 1', 'a.rules')"),
    ("expect", "import execclient.expect"),
    ("cli", "from execclient.commands.app import main; main(['completion', 'bash'])"),
)
"""Programs that need an extra of the client."""

INTEGRATIONS = sorted(
    path.parent.name
    for path in (ROOT / "tests/third_party").glob("*/constraints.txt")
    if path.parent.name != "mcp"  # a command, which says it itself
)
"""Extras of the client with other projects, which `make integrations` installs and tests."""


@pytest.fixture(scope="module")
def client(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("client"), wheels.client)


@pytest.fixture(scope="module")
def programs(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("server"), wheels.client, f"{wheels.server}[{EXTRAS}]")


# -- the client


def test_the_client_is_small_and_comes_without_the_server(client: Path) -> None:
    (packages,) = client.parent.glob("lib/python*/site-packages")
    names = {each.name for each in packages.iterdir() if ".dist-info" not in each.name}
    size = sum(each.stat().st_size for each in packages.rglob("*") if each.is_file())

    assert names == {"execclient", "execprotocol", "msgspec", "pybase64"}
    assert size < MAX_CLIENT_BYTES
    assert list(packages.rglob("*.pyc"))
    assert len(list(packages.glob("*.dist-info"))) == 3  # as the pages say: itself and two more


def test_the_plain_client_imports_what_needs_no_extra(client: Path, tmp_path: Path) -> None:
    program = """
import execclient, execclient.sync, execclient.patch, execclient.quickstart
import execclient.govern.orchestrator, execclient.govern.policy, execclient.govern.sandbox
from execclient.tools import CallBegin, CallRecord, HostSettings, ToolsConfig, Turn
"""
    run(client / "python", "-W", "error", "-c", program, folder=tmp_path)


def test_the_plain_client_talks_to_a_daemon(client: Path, programs: Path, tmp_path: Path) -> None:
    program = f"""
from execclient.sync import connect
with connect("stdio:", command=[{str(programs / "execserver")!r}, "serve", "--listen", "stdio"]) as executor:
    print(executor.run(["echo", "hello"]).text, end="")
"""
    assert run(client / "python", "-c", program, folder=tmp_path) == "hello\n"


@pytest.mark.parametrize(("extra", "program"), NEED_EXTRA)
def test_a_missing_extra_is_an_error_that_says_what_to_install(
    extra: str, program: str, client: Path, tmp_path: Path
) -> None:
    error = run(client / "python", "-c", program, folder=tmp_path, status=1)

    assert f'pip install "execclient[{extra}]"' in error.splitlines()[-1]


@pytest.mark.parametrize("extra", INTEGRATIONS)
def test_an_integration_without_its_project_says_what_to_install(
    extra: str, client: Path, tmp_path: Path
) -> None:
    program = f"import execclient.integrations.{extra}"
    error = run(client / "python", "-c", program, folder=tmp_path, status=1)

    assert error.splitlines()[-1].startswith(f"ImportError: execclient.integrations.{extra} needs ")
    assert f'pip install "execclient[{extra}]"' in error.splitlines()[-1]


@pytest.mark.parametrize("extra", sorted({extra for extra, _ in NEED_EXTRA}))
def test_an_extra_brings_all_that_its_programs_need(extra: str, wheels: Wheels, tmp_path: Path) -> None:
    programs = environment(tmp_path, f"{wheels.client}[{extra}]")

    for needed, program in NEED_EXTRA:
        if needed == extra:
            run(programs / "python", "-c", program, folder=tmp_path)


# -- the server


def test_the_tutorial_works_from_the_wheels_alone(programs: Path) -> None:
    blocks = blocks_of(TUTORIAL)
    clone, make_run, *rest = blocks
    assert clone.text.startswith("$ git clone")
    # Run by the interpreter of the tests, it would see the repository.
    assert not [block.where for block in rest if block.language == "python" and block.title is None]
    with reader(programs=programs) as one:
        one.follow([installed(make_run), *rest])


def installed(block: Block) -> Block:
    """`make run` without a Makefile."""
    command, line_end, output = block.text.partition("\n")
    assert command == "$ make run"
    return replace(block, text="$ .venv/bin/python -m execclient.quickstart" + line_end + output)


def test_nothing_of_the_repository_is_seen(programs: Path, tmp_path: Path) -> None:
    program = (
        "import execclient.expect, execclient.sync, execserver, sys\n"
        "for module in (execclient.expect, execclient.sync, execserver): print(module.__file__)\n"
        "print(*sys.path, sep='\\n')"
    )
    lines = run(programs / "python", "-c", program, folder=tmp_path).splitlines()
    modules, here, paths = lines[:3], lines[3], lines[4:]
    assert here == ""  # the folder that one is in
    assert all(Path(module).is_relative_to(programs.parent) for module in modules)
    assert paths
    assert not [path for path in paths if Path(path).resolve().is_relative_to(ROOT)]


def test_the_help_lists_all_commands(programs: Path, tmp_path: Path) -> None:
    text = run(programs / "execserver", "--help", folder=tmp_path)
    listed = re.findall(r"^ +([a-z]+)\b", text, re.MULTILINE)
    assert set(COMMANDS) <= set(listed)


def test_the_configuration_is_checked_and_the_worker_is_complete(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('log_level = "info"\n')
    file.chmod(0o600)
    run(programs / "execserver", "config", "check", "--config", file, folder=tmp_path)
    program = "from execserver.fsworker.bundle import bundle; print(len(bundle()))"
    assert int(run(programs / "python", "-c", program, folder=tmp_path)) > 10_000


def test_the_server_wants_the_client_of_its_own_version(wheels: Wheels) -> None:
    wanted = {name for name in requirements(wheels.server) if name.startswith("execclient[")}
    version = wheels.client.name.split("-")[1]
    assert wanted == {f"execclient[cli,ignore,tools,ws]=={version}"} | {
        f"execclient[{client}]=={version}; extra == '{extra}'"
        for client, extra in [*((each, each) for each in EXTRAS.split(",")), ("relay", "fleet")]
    }


def test_what_a_relay_needs_comes_with_the_extra_only(wheels: Wheels, programs: Path, tmp_path: Path) -> None:
    extras = ["fleet", "relay"]
    for wheel, needed in ((wheels.server, ["aiohttp", *extras]), (wheels.client, ["cryptography", "relay"])):
        needs = [each for each in requirements(wheel) if each.startswith(("aiohttp", "cryptography"))]
        assert {re.split(r"\W", each)[0] for each in needs} == {needed[0]}
        assert sorted(each.partition("; extra == ")[2].strip("'") for each in needs) == needed[1:]

    printed = run(programs / "execserver", "relay", "key", tmp_path / "a.key", folder=tmp_path)

    assert re.fullmatch(r"[0-9a-f]{64}\n", printed)


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return re.findall(r"^Requires-Dist: (.*)$", archive.read(name).decode(), re.MULTILINE)


def test_each_archive_has_the_licence_and_names_it(wheels: Wheels) -> None:
    text = (ROOT / "LICENSE").read_bytes()
    for wheel in (wheels.client, wheels.server):
        with zipfile.ZipFile(wheel) as archive:
            (licence,) = (each for each in archive.namelist() if each.endswith("/LICENSE"))
            (metadata,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            assert archive.read(licence) == text
            assert "\nLicense-Expression: Apache-2.0\n" in archive.read(metadata).decode()
        with tarfile.open(next(wheel.parent.glob(f"{wheel.name.split('-')[0]}-*.tar.gz"))) as archive:
            (licence,) = (each for each in archive.getnames() if re.fullmatch(r"[^/]+/LICENSE", each))
            content = archive.extractfile(licence)
            assert content is not None
            assert content.read() == text


def test_the_same_source_gives_the_same_wheel(wheels: Wheels, tmp_path: Path) -> None:
    """In another folder, with other times and modes of files. `make release-tests` has whole releases."""
    source = tmp_path / "elsewhere" / "python"
    shutil.copytree(
        ROOT / "clients" / "python",
        source,
        copy_function=shutil.copyfile,
        ignore=shutil.ignore_patterns("__pycache__"),
    )

    dist(tmp_path / "dist", source)

    assert (tmp_path / "dist" / wheels.client.name).read_bytes() == wheels.client.read_bytes()


def test_a_wheel_has_its_packages_their_types_and_nothing_else(wheels: Wheels) -> None:
    python = ROOT / "clients" / "python"
    packages = (
        (wheels.client, python, ("execclient", "execprotocol")),
        (wheels.server, ROOT, ("execserver",)),
    )
    for wheel, base, names in packages:
        with zipfile.ZipFile(wheel) as archive:
            files = {each for each in archive.namelist() if ".dist-info/" not in each}
        assert files == {
            str(path.relative_to(base))
            for name in names
            for path in (base / name).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert {f"{name}/py.typed" for name in names} <= files
    with zipfile.ZipFile(wheels.client) as archive:
        page = {name: archive.read(f"execclient/console/static/{name}") for name in PAGE}
    assert b"@xterm/xterm" in page["licenses.txt"]
    assert b"Permission is hereby granted" in page["licenses.txt"]
