"""The network proxy of a process: it begins with the process, outlives its server, and ends with it.

Only the processes of a start with `networkProxy` have one. The proxy itself is a process of its own
(`network/program.py`), which the server speaks to (`network/proxies.py`).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Protocol

from execserver.processes.exit import Leader
from execserver.processes.recovery_state import Slots
from execserver.processes.spawn import Spawned, open_gate
from execserver.supervisor.fd_store_protocol import NETWORK, STATUS
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execserver.network.proxies import Decisions, Proxy

log = Logger()


class ProxyOwner(Protocol):
    """The process that a network proxy belongs to."""

    process_id: str
    leader: Leader
    failure: str | None
    """Why the command was never run."""

    @property
    def running(self) -> bool:
        """Whether the leader has not been reaped."""


class ProcessProxy:
    """The network proxy of one process.

    Args:
        owner: is killed if its command waits for a proxy that has ended.
        proxy: belongs to this object from now on.
    """

    __slots__ = ("_owner", "_proxy")

    def __init__(self, owner: ProxyOwner, proxy: Proxy) -> None:
        self._owner = owner
        self._proxy = proxy

    def serve(self, decisions: Decisions) -> None:
        """Have these decisions answer its questions."""
        self._proxy.serve(self._owner.process_id, decisions, self._ended)

    def close(self) -> None:
        """End the proxy (idempotent)."""
        self._proxy.close()

    def _ended(self, reason: str, waits: bool) -> None:
        owner = self._owner
        if not owner.running or owner.leader.ending:
            return
        measures.network_proxies_lost += 1
        log.warning("a network proxy ended before its process", process=owner.process_id, reason=reason)
        if waits:
            # The command would wait for the proxy for ever.
            owner.failure = f"failed to prepare process sandbox: {reason}"
            owner.leader.signal_group(signal.SIGKILL)


def begin_in_sandbox(spawned: Spawned, proxy: Proxy | None, tag: int | None) -> None:
    """Let a command begin that waits in its sandbox for its start to be recorded.

    Args:
        spawned: its launcher; the descriptor of the gate is closed.
        proxy: its network proxy. With one, it is the proxy that opens the gate, when it listens inside.
        tag: its ownership tag.
    """
    gate, spawned.gate = spawned.gate, None
    if gate is None or spawned.status is None:
        return
    if proxy is None:
        open_gate(gate)
    else:
        proxy.enter(spawned.status, gate, tag)


def begin_inherited(
    owner: ProxyOwner, spawned: Spawned, slots: Slots, tag: int | None
) -> ProcessProxy | None:
    """Take a sandbox's descriptors over, and let its command begin if the earlier server has not done so.

    Args:
        owner: the process.
        spawned: gets the launcher's report.
        slots: the descriptors that the supervisor kept. Those that are taken are removed.
        tag: the ownership tag of the process.

    Returns:
        Its network proxy, which repeats its questions; None if it has none.
    """
    if slots.get(STATUS):
        spawned.status, *gate = slots.pop(STATUS)
        spawned.gate = gate[0] if gate else None
    proxy = None
    if slots.get(NETWORK):
        from execserver.network.proxies import Proxy

        proxy = Proxy.adopt(slots.pop(NETWORK)[0])
    begin_in_sandbox(spawned, proxy, tag)
    if proxy is None:
        return None
    proxy.resume()
    return ProcessProxy(owner, proxy)
