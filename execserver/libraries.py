"""What libraries load by themselves and a daemon does not need: left out, or put off until somebody does.

To be called before any of them is loaded. What is put off is loaded by the first who uses it, or with
everything else a moment after the start (`loading.py`): the first command of a client does not wait for it,
and it makes no difference afterwards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from execserver.loading import LOADER, put_off

_CO_COROUTINE = 0x80  # of the flags of code; `inspect` and `dis` have names for them


def leave_out() -> None:
    """Keep out of the daemon's memory what the libraries would load, and nobody needs here."""
    # structlog draws tracebacks with rich where that is installed, and colours them on Windows with colorama;
    # a daemon that logs to a file has no use for it, and it costs 4 MiB and a tenth of the start. Archives,
    # which shutil would like to be able to make, need half a MiB of libraries.
    for name in ("rich", "colorama", "bz2", "lzma"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # pydantic looks through all installed packages for plugins, which would see whatever clients send.
    # What it needs for that takes 1.5 MiB.
    plugins = ModuleType("pydantic.plugin._loader")

    def from_the_real_one(name: str) -> object:
        # Only another version of pydantic asks for more.
        if name.startswith("__"):
            raise AttributeError(name)
        sys.modules.pop(plugins.__name__, None)
        return getattr(import_module(plugins.__name__), name)

    vars(plugins).update(get_plugins=tuple, __getattr__=from_the_real_one)
    sys.modules.setdefault(plugins.__name__, plugins)


def load_msgspec_and_uvloop() -> None:
    """Load these two without the greater part of what they bring, which is a sixth of a start."""
    for name in ("msgspec.inspect", "msgspec.msgpack", "msgspec.toml", "msgspec.yaml", "linecache"):
        _put_off(name)
    with (
        # For the type of a UUID msgspec loads `uuid`, which asks for the system's name and nothing else.
        _later("platform", system=lambda: os.uname().sysname),
        _later("msgspec._json_schema", **_calls("msgspec._json_schema", "schema", "schema_components")),
        _absent("typing_extensions"),
    ):
        import_module("msgspec")
    # What these two are given here they keep.
    inspecting = _calls("inspect", "isgenerator") | {"iscoroutinefunction": is_coroutine_function}
    tracing = _calls("traceback", "walk_stack", "format_list", "extract_stack")
    with (
        _later("inspect", **inspecting),
        _later("traceback", **tracing, StackSummary=_StackSummary),
        _later("ssl", **_of_ssl()),
        # It never starts a process for us, and has no need of the real exception.
        _later("subprocess", PIPE=-1, STDOUT=-2, DEVNULL=-3, SubprocessError=_SubprocessError),
    ):
        import_module("uvloop")


class _SubprocessError(Exception):
    """What uvloop would raise where it cannot start a process."""


class Later(ModuleType):
    """Stands for a module of a library until somebody uses something of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what looks at modules as such asks for these, of all that there are
            raise AttributeError(name)
        return getattr(LOADER.load_at_once(self.load), name)

    def load(self) -> ModuleType:
        """Load the module itself. Whoever has this in its place sees no difference from now on."""
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = import_module(name)
        vars(self).update(vars(module))
        return module


def _put_off(name: str) -> Later | None:
    """Nothing, when it is there already."""
    if name in sys.modules:
        return None
    later = sys.modules[name] = Later(name)
    put_off(later.load)
    return later


@contextmanager
def _later(name: str, **meanwhile: object) -> Iterator[None]:
    """Put a module off; for as long as this lasts, some of it is there."""
    later = _put_off(name)
    if later is None:
        yield
        return
    vars(later).update(meanwhile)
    yield
    for each in meanwhile:
        if vars(later).get(each) is meanwhile[each]:
            del vars(later)[each]


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """A module that cannot be imported for as long as this lasts, unless it was already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    yield
    del sys.modules[name]


def _calls(module: str, *names: str) -> dict[str, Any]:
    """Functions of a module, which is loaded when one of them is called."""

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        return getattr(LOADER.load_at_once(lambda: import_module(module)), name)(*arguments, **options)

    return {name: partial(call, name) for name in names}


def is_coroutine_function(value: object) -> bool:
    """As `inspect.iscoroutinefunction`, which uvloop asks of whatever is to run in a thread."""
    while isinstance(value, MethodType | partial):
        value = value.__func__ if isinstance(value, MethodType) else value.func
    if isinstance(value, FunctionType):
        return bool(value.__code__.co_flags & _CO_COROUTINE)
    if isinstance(value, BuiltinFunctionType):
        return False
    return bool(LOADER.load_at_once(lambda: import_module("inspect")).iscoroutinefunction(value))


class _StackSummary:
    """All that a loop in debug mode uses of it."""

    @staticmethod
    def extract(*arguments: Any, **options: Any) -> Any:
        return LOADER.load_at_once(lambda: import_module("traceback")).StackSummary.extract(
            *arguments, **options
        )


def _of_ssl() -> Mapping[str, Any]:
    """What uvloop and asyncio take of `ssl`: what that has from `_ssl`, and one function."""
    core = import_module("_ssl")  # its errors are caught by class, so there is no doing without
    names = ("SSLError", "SSLWantReadError", "SSLSyscallError", "SSLZeroReturnError", "MemoryBIO")
    numbers = ("SSL_ERROR_WANT_READ", "SSL_ERROR_WANT_WRITE", "SSL_ERROR_SYSCALL")
    return {
        **{name: getattr(core, name) for name in (*names, *numbers)},
        "CertificateError": core.SSLCertVerificationError,
        # Its subclass, the public one, is asked for by `isinstance` only.
        "SSLContext": core._SSLContext,  # noqa: SLF001
        **_calls("ssl", "create_default_context"),
    }
