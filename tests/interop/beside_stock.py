"""Our answers beside those of the stock server, for discovery and the network proxy.

Named by `make beside-stock` only, which says where the binary is (CODEX_BIN); without it the tests fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.sandbox.profiles import READ_ROOT, at, context, restricted
from tests.sandbox_user import remove_tree
from tests.support.capabilities import make_everything
from tests.support.wire import Client, Json, path_uri, spawn_stdio

REPOSITORY = Path(__file__).parents[2]

Ask = Callable[[Client], Json]
Both = Callable[[Ask], tuple[Json, Json]]


@pytest.fixture(scope="module")
def codex() -> str:
    """The stock binary."""
    path = os.environ.get("CODEX_BIN", "")
    assert Path(path).is_file(), "CODEX_BIN must name the stock codex binary: run `make beside-stock`"
    return path


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that is not below /tmp: there the stock server refuses to make what its sandbox needs."""
    folder = Path(tempfile.mkdtemp(prefix="beside-stock-", dir=Path.home())).resolve()
    yield folder
    remove_tree(folder)


@pytest.fixture
def both(codex: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    """Asks the stock server and ours."""

    def ask(question: Ask) -> tuple[Json, Json]:
        home = root / "home"
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home / ".codex")}
        answers = []
        for command in (f"{codex} exec-server", f"{Path(sys.executable).with_name('execserver')} serve"):
            monkeypatch.setenv("EXECSERVER_TEST_COMMAND", command)
            with spawn_stdio(env=env, cwd=root) as client:
                answers.append(question(client.handshake()))
        return answers[0], answers[1]

    return ask


def test_the_files_of_roots_are_alike(both: Both, root: Path) -> None:
    _, agent, project = make_everything(root)
    plugins = sorted((agent / "plugins/cache/market").glob("*/*"))
    folders = [agent / "skills", agent, project, project / "nothing", agent / "config.toml", *plugins]
    folders.append(plugins[0] / "skills/first")
    denied = context(restricted(READ_ROOT, at(agent / "skills/one", "deny")), cwd=project)
    roots: list[Json] = [{"id": str(folder), "path": path_uri(folder)} for folder in folders]
    roots += [{**roots[0], "sandbox": denied}, {**roots[0], "sandbox": context(restricted(), cwd=project)}]
    stock, ours = both(lambda client: client.call("capabilityRoots/discoverV1", {"roots": roots}))
    assert len(stock["roots"]) == len(ours["roots"]) == len(roots) > 20
    for expected, found in zip(stock["roots"], ours["roots"], strict=True):
        assert found == expected


def test_what_is_installed_is_alike(both: Both, root: Path) -> None:
    home, agent, project = make_everything(root)
    sandboxes = (
        None,
        context(restricted(READ_ROOT), cwd=project),
        context(restricted(at(home / ".agents", "read")), cwd=project),
        context(restricted(READ_ROOT, at(agent / "plugins/cache/market/usual", "deny")), cwd=project),
    )
    for sandbox in sandboxes:
        stock, ours = both(partial(_installed, {"cwd": path_uri(project), "sandbox": sandbox}))
        if sandbox is not None:
            # The stock server looks for plugins outside the sandbox, and warns of what it finds there.
            assert set(ours.pop("warnings")) <= set(stock.pop("warnings"))
        assert ours == stock
        assert ours["skills"]


def _installed(params: Json, client: Client) -> Json:
    return client.call("capabilities/discoverV2", params)


def test_layers_of_configuration_are_alike(both: Both, root: Path) -> None:
    _, _, project = make_everything(root)
    folders = (project, project / "below", project / "below/nothing", root / "untrusted", root)
    keys = ([["a"]], [["a", "b"], ["model"]], [["a", "c.d"], ["mcp_servers"]], [["nothing"], ["model", "x"]])
    questions = [
        {"cwd": path_uri(folder), "configPaths": paths, "requirementsPaths": [["a"]]}
        for folder in folders
        for paths in keys
    ]
    stock, ours = both(
        lambda client: [_parsed(client.call("environmentConfig/read", each)) for each in questions]
    )
    assert ours == stock
    assert any(each["config"]["layers"] for each in ours)


def _parsed(answer: Json) -> Json:
    for stack in (answer["config"], answer["requirements"]):
        for layer in stack["layers"]:
            layer["toml"] = tomllib.loads(layer["toml"])
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces with names of their own need root")
def test_the_network_proxy_answers_alike(codex: str, tmp_path: Path) -> None:
    def answers(command: str) -> Json:
        program = [sys.executable, "-m", "tests.interop.network_answers", command]
        done = subprocess.run(
            ["unshare", "--net", "--mount", *program],
            cwd=REPOSITORY,
            env={**os.environ, "ANSWERS_FOLDER": str(tmp_path)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        )
        return json.loads(done.stdout)

    stock = answers(f"{codex} exec-server")
    ours = answers(f"{Path(sys.executable).with_name('execserver')} serve")
    assert ours.keys() == stock.keys()
    assert sum(len(case.get("seen", ())) for case in stock.values()) > 150
    for case, expected in stock.items():
        for part in expected:
            assert ours[case][part] == expected[part], (case, part)
