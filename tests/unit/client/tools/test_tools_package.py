"""What the packages of the tools export, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import execclient.govern.policy
import execclient.tools


@pytest.mark.parametrize(
    "package", [execclient.tools, execclient.govern.policy], ids=lambda each: each.__name__
)
def test_every_public_name_is_there(package: object) -> None:
    names: list[str] = package.__all__  # type: ignore[attr-defined]

    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in names:
        assert getattr(package, name) is not None


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Toolbox'"):
        execclient.tools.Toolbox  # noqa: B018 # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["Toolset", "ToolsConfig"])
def test_a_name_can_be_the_first_import_of_a_program(name: str) -> None:
    program = f"from execclient.tools import {name}"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_the_library_of_rule_files_and_the_server_are_not_imported_with_a_toolset() -> None:
    program = (
        "import sys; from execclient.tools import Toolset; import execclient.govern.policy; "
        "print([name for name in ('starlark', 'tree_sitter', 'structlog', 'uvloop', 'psutil', 'argparse') "
        "if name in sys.modules])"
    )

    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)

    assert printed.stdout == "[]\n", printed.stderr
