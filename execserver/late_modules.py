"""Modules that are loaded a moment after the start, when no client waits.

They take 20 ms and more to load, for the libraries that they need, and a first command needs none of them. A
request that needs one earlier loads it (`loading.py`). All are loaded early in a server's life, because an
upgrade may replace the installed files.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from execserver.loading import LOADER
from execserver.rpc.json_rpc import load_dispatch
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execserver.processes.executor import Executor

LATE_MODULES = ("structlog", "execserver.limits.leaves", "execserver.transports.websocket")
"""A server on stdio needs the first two only."""

LOAD_AFTER_SECONDS = 0.1
"""The time without traffic after which they are loaded. A client that starts a daemon for one command does
not wait for them, nor does a client that keeps asking, or whose command keeps writing."""

LOAD_AT_LAST_SECONDS = 5.0
"""The longest wait for such a time."""

log = Logger()

LOADED_ON_DEMAND = (
    "pydantic_core",
    "execserver.network.program",
    "execserver.ports.opening",
    "execserver.ports.port_watch",
    "execserver.search.program",
    "execserver.search.requests",
    "execserver.search.searches",
    "execserver.watching.watches",
)
"""Modules that the first request loads that needs them."""


async def load_when_quiet(executor: Executor, *, only_stdio: bool) -> None:
    """Load the late modules once there is no traffic. Failures are logged: a request loads what it needs.

    Args:
        executor: gives up its reserved descriptors for the load.
        only_stdio: leave out the modules that only sockets need.
    """
    try:
        await asyncio.sleep(LOAD_AFTER_SECONDS)
        await quiet_moment()
        await executor.reserved.run(partial(load_late_modules, only_stdio=only_stdio))
    except OSError as error:
        log.warning("what is needed later cannot be loaded now", reason=str(error))
    except Exception as error:  # a broken installation
        log.error("what is needed later cannot be loaded", exc_info=error)


def load_late_modules(*, only_stdio: bool = False) -> None:
    """Load the late modules, in any thread.

    Args:
        only_stdio: leave out the modules that only sockets need.

    Raises:
        OSError: no descriptor is free.
        ImportError: the installation is broken.
    """
    # After each of its system calls the loop waits for the interpreter for up to this interval.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(100e-6)
    try:
        for name in LATE_MODULES[:2] if only_stdio else LATE_MODULES:
            LOADER.load_without_reserved(partial(import_module, name))
    finally:
        sys.setswitchinterval(usual)
    gc.freeze()  # as `freeze_heap`


def load_everything() -> None:
    """Load all modules, also those of standard JSON-RPC, of `http/request` and `LOADED_ON_DEMAND`, to check
    the installation. Most daemons never need these.

    Raises:
        ImportError, OSError: the installation is broken.
    """
    load_late_modules()
    LOADER.load(load_dispatch)
    for name in LOADED_ON_DEMAND:
        LOADER.load(partial(import_module, name))


async def quiet_moment() -> None:
    """Wait for a moment without traffic from or to any client, at most `LOAD_AT_LAST_SECONDS`."""
    loop = asyncio.get_running_loop()
    at_last = loop.time() + LOAD_AT_LAST_SECONDS
    before = -1
    while (passed := measures.received_bytes + measures.sent_bytes) != before and loop.time() < at_last:
        before = passed
        await asyncio.sleep(LOAD_AFTER_SECONDS)


def freeze_heap() -> None:
    """Exempt the objects that live now from collection, and enable the collector.

    They live as long as the server. The collector is off until now (`cli.py`): the imports leave some
    thousand of 100,000 objects unreachable, and to find those would take a tenth of the start.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
