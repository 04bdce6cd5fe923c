"""SWE-ReX's own tests of runtimes and deployments, from its sdist, with our fixtures.

The sdist has no `conftest.py`. The fixtures that its tests name are in ours, and the two classes of actions
and commands with a time limit are here. Its authors expect one test to fail; it passes.

Left out: `test_runtime.py`, which tests two private functions of its local runtime; `test_server.py` and
`test_remote_deployment.py`, which test its HTTP server; `test_get_deployment.py`, which tests its settings;
and those for Docker, Modal and Fargate, which need these.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from swerex.runtime.abstract import BashAction, Command

from execclient.integrations.swe_rex import ExecServerDeployment, ExecServerRuntime

SUITE = Path(sys.prefix) / "sdist/tests"
"""`make integrations` unpacks it beside the environment."""

MODULES = ("test_execution", "test_local_runtime", "test_local_deployment", "test_dummy_deployment")


class _Action(BashAction):
    timeout: float | None = 30


class _Command(Command):
    timeout: float | None = 30


def _module(name: str) -> ModuleType:
    """A module of the suite, as one of a package that has our classes for its `conftest`."""
    path = SUITE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"swe_rex_suite.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_package = ModuleType("swe_rex_suite")
_package.__path__ = []
sys.modules |= {"swe_rex_suite": _package, "swe_rex_suite.conftest": sys.modules[__name__]}
_modules = {name: _module(name) for name in MODULES}
for _name, _each in _modules.items():
    for _test, _function in vars(_each).items():
        if _test.startswith("test_"):
            globals()[_test if _name == "test_execution" else f"{_test}_in_{_name}"] = _function


@pytest.fixture(autouse=True)
def ours(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our classes in the place of those that the tests make themselves."""
    deployment = partial(ExecServerDeployment, url=url, cwd=str(tmp_path))
    monkeypatch.setattr(_modules["test_local_deployment"], "LocalDeployment", deployment)
    monkeypatch.setattr(_modules["test_dummy_deployment"], "DummyDeployment", deployment)

    def unreachable(host: str, auth_token: str) -> ExecServerRuntime:
        return ExecServerRuntime(url=f"unix://{tmp_path}/{host.rpartition('/')[2]}")

    monkeypatch.setattr(_modules["test_execution"], "RemoteRuntime", unreachable)


def test_the_suite_is_whole() -> None:
    assert len([name for name in globals() if name.startswith("test_")]) == 55
