from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from types import ModuleType

import pytest

import execclient
import execclient.sync
import execclient.tools
from execclient import errors

HEAVY = (
    *("pydantic", "pydantic_core", "pydantic_settings", "structlog", "uvloop", "jwt", "httpcore"),
    *("picows", "websockets", "argparse", "argcomplete", "pexpect", "psutil"),
)


def all_errors(error: type[errors.ExecServerError] = errors.ExecServerError) -> list[type]:
    # Not those of `execclient.tools`, if another test has imported them: they have a tree of their own.
    # Nor the classes for one `errno`, which share the code of another one.
    children = [
        child
        for child in error.__subclasses__()
        if child.__module__ == errors.__name__ and "code" in vars(child)
    ]
    return [error, *(each for child in children for each in all_errors(child))]


@pytest.mark.parametrize("module", ["execclient", "execclient.sync"])
def test_importing_the_client_pulls_in_nothing_of_the_server_but_its_protocol(module: str) -> None:
    listing = subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; {module}.connect; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert "execclient.session.session" in listing
    assert [name for name in listing if name.partition(".")[0] in HEAVY] == []
    server = {name for name in listing if name.startswith("execserver.")}
    assert server <= {
        "execprotocol.daemon_thread",
        "execprotocol",
        "execprotocol.errors",
        "execprotocol.limits",
        "execprotocol.path_text",
        "execprotocol.path_uri",
    }


def test_every_public_name_is_there_and_documented() -> None:
    assert execclient.__all__ == sorted(execclient.__all__, key=lambda name: execclient.__all__.index(name))
    for name in execclient.__all__:
        assert inspect.getdoc(getattr(execclient, name)), name


@pytest.mark.parametrize("module", [execclient, execclient.tools, execclient.sync])
def test_a_module_shows_what_it_has(module: ModuleType) -> None:
    assert set(module.__all__) <= set(dir(module))
    helped = pydoc.plain(pydoc.render_doc(module))
    for name in module.__all__:
        assert re.search(rf"class {name}\b|^ +{name}\b", helped, re.MULTILINE), name


def test_the_public_names_are_these() -> None:
    failures = {error.__name__ for error in all_errors()}

    assert set(execclient.__all__) - failures == {
        *("connect", "Executor", "Process", "FileSystem", "Watch", "Change"),
        *("Forward", "ListeningPort", "PortEvent", "PortEvents"),
        *("DrainNotice", "NetworkAccess", "NetworkDecision", "NetworkRequest"),
        *(
            "ResourceLimits",
            "RunResult",
            "Chunk",
            "TextChunk",
            "TextStream",
            "Line",
            "LineStream",
            "Page",
            "ProcessInfo",
        ),
        *("Stat", "Entry", "WalkEntry", "Progress", "Copied"),
        *("ReadOnly", "WorkspaceWrite", "DangerFullAccess"),
        *("TreeCopied", "TreeProgress", "LeftOut"),
    }
    assert failures <= set(execclient.__all__)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [vars(error)["code"] for error in all_errors()]

    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_the_tree_at_the_top_of_errors_draws_every_error_with_its_code(error: type) -> None:
    drawn = [line.split() for line in (errors.__doc__ or "").splitlines()]

    row = next(words for words in drawn if error.__name__ in words)
    assert row[row.index(error.__name__) + 1] == vars(error)["code"]


def test_wire_codes_become_their_errors_and_an_unknown_one_stays_general() -> None:
    assert type(errors.call_failed("fs/readFile", -32004, "no")) is errors.NotFound
    assert type(errors.call_failed("fs/readFile", -1, "no")) is errors.CallFailed
    assert errors.call_failed("fs/readFile", -1, "no").wire_code == -1
