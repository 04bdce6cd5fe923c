"""What libraries load by themselves is put off, and is the real thing when somebody uses it."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from execserver.libraries import is_coroutine_function


def output_of(program: str) -> list[str]:
    """What a program prints in an interpreter that has msgspec and uvloop as a daemon has them."""
    load = """
import sys
from execserver import libraries
libraries.leave_out()
libraries.load_msgspec_and_uvloop()
"""
    command = [sys.executable, "-I", "-c", load + program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("ssl", "ssl.SSLContext.wrap_socket and ssl.create_default_context().check_hostname"),
        (
            "inspect",
            "inspect.iscoroutinefunction(print) or inspect.signature(lambda a: a).parameters['a'].name",
        ),
        (
            "traceback",
            "traceback.StackSummary.extract(traceback.walk_stack(None)).format()[0][:6] == '  File'",
        ),
        ("linecache", "linecache.getlines('/no/such/file') == []"),
        ("subprocess", "subprocess.run(['/bin/true'], stdout=subprocess.DEVNULL).returncode == 0"),
        ("platform", "platform.system() + platform.machine()"),
        ("msgspec.inspect", "msgspec.inspect.type_info(int)"),
        ("msgspec.msgpack", "msgspec.msgpack.decode(msgspec.msgpack.encode(1))"),
        ("msgspec._json_schema", "msgspec.json.schema(int)"),
    ],
)
def test_what_is_put_off_is_loaded_by_its_first_use(module: str, use: str) -> None:
    program = f"""
import {module}
before = type(sys.modules[{module!r}]).__name__
print(before, bool({use}), type(sys.modules[{module!r}]).__name__)
"""
    assert output_of(program) == ["Later", "True", "module"]


def test_who_has_taken_it_before_sees_the_real_one_too() -> None:
    program = """
import ssl
taken = ssl
from ssl import SSLContext
import ssl
print(taken.SSLContext is SSLContext, ssl is taken, taken.__file__ == ssl.__file__)
"""
    assert output_of(program) == ["True", "False", "True"]


def test_what_msgspec_does_without_is_there_for_others() -> None:
    assert output_of("import typing_extensions\nprint(typing_extensions.TypedDict.__name__)") == ["TypedDict"]


def test_all_of_it_is_loaded_with_what_is_put_off() -> None:
    program = """
from execserver.loading import load_deferred
load_deferred()
print(*(name for name, module in sys.modules.items() if type(module).__name__ == "Later"))
"""
    assert output_of(program) == []


async def a_coroutine_function() -> None:
    """Nothing."""


class Something:
    """Something that can be called."""

    async def method(self) -> None:
        """Nothing."""

    def __call__(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    "value",
    [
        a_coroutine_function,
        partial(a_coroutine_function),
        partial(partial(print)),
        Something().method,
        Something(),
        Something,
        print,
        [].append,
        lambda: None,
        asyncio.sleep,
        None,
    ],
)
def test_coroutine_functions_are_told_apart_as_inspect_does(value: object) -> None:
    assert is_coroutine_function(value) == inspect.iscoroutinefunction(value)


def test_a_module_that_is_put_off_may_be_used_in_the_middle_of_an_import(tmp_path: Path) -> None:
    # One thread imports a module that uses `platform`, the other has the loader and imports the same module.
    program = """
import threading
from importlib import import_module
from execserver.loading import LOADER
sys.path.insert(0, FOLDER)
import builtins
builtins.begun, builtins.held = threading.Event(), threading.Event()

def with_the_loader():
    begun.wait(10)
    LOADER.load(lambda: (held.set(), import_module("circle")))

both = (with_the_loader, lambda: import_module("circle"))
threads = [threading.Thread(target=work, daemon=True) for work in both]
[thread.start() for thread in threads]
[thread.join(10) for thread in threads]
print(*(thread.is_alive() for thread in threads))
"""
    (tmp_path / "circle.py").write_text(
        "import builtins, platform\nbuiltins.begun.set()\nbuiltins.held.wait(10)\nplatform.system()\n"
    )
    assert output_of(f"FOLDER = {str(tmp_path)!r}\n{program}") == ["False", "False"]
