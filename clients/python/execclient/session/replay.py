"""Replay: fill inboxes with events from before they were there, or from the time without a connection.

The client's own processes are read; the daemon sends their later events by itself. A process of another
session has to be subscribed to on each new connection; the daemon then sends the events after a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from execclient.connection.connection import Connection, Json
from execclient.errors import CallFailed, NoSuchProcess
from execclient.session.inbox import Inbox, Key
from execprotocol.limits import MAX_CHUNK_BYTES, MAX_PAGE_BYTES


def reference(key: Key) -> dict[str, Json]:
    """The parameters that name a process in a request."""
    session_id, process_id = key
    if session_id is None:
        return {"processId": process_id}
    return {"processId": process_id, "sessionId": session_id}


async def read_missing(connection: Connection, inbox: Inbox) -> None:
    """Fill an inbox with all events since its last one, and release it.

    Raises:
        ConnectionLost: the inbox stays held, with the events that were read.
        CallFailed: there is no such process.
    """
    params = {**reference(inbox.key), "maxBytes": None, "waitMs": 0}
    while not inbox.closed:
        before = inbox.last_seq
        page = inbox.fill(await connection.request("process/read", {**params, "afterSeq": before}))
        # A page ends before the chunk that would make it too large.
        is_last = sum(len(chunk.data) for chunk in page.chunks) + MAX_CHUNK_BYTES <= MAX_PAGE_BYTES
        # Events pushed meanwhile may have overtaken others, too.
        if is_last and not (inbox.has_gaps() and inbox.last_seq > before):
            break
    inbox.release()


async def subscribe(
    connection: Connection, inboxes: Iterable[Inbox], *, interactive: bool
) -> Mapping[str, Json]:
    """Subscribe to another session's process, for inboxes that have the same last event.

    A second subscription moves the daemon's cursor; inboxes drop the events that are sent twice.

    Returns:
        The state of the process.

    Raises:
        ConnectionLost: the inboxes stay held.
        CallFailed: there is no such process, or access is denied.
    """
    inboxes = list(inboxes)
    params: dict[str, Json] = {
        **reference(inboxes[0].key),
        "afterSeq": max(inbox.last_seq for inbox in inboxes),
        "interactive": interactive,
    }
    state: Mapping[str, Json] = await connection.request("process/subscribe", params)
    for inbox in inboxes:
        inbox.update_state(state)
        inbox.release()
    return state


async def replay(connection: Connection, inboxes: Iterable[Inbox]) -> None:
    """After a resume: fill all inboxes with missed events, and release them.

    An inbox whose process is gone fails alone.

    Raises:
        ConnectionLost: the inboxes stay held, with the events that were read.
    """
    tasks = []
    observed: dict[Key, list[Inbox]] = {}
    for inbox in inboxes:
        if inbox.attaching:
            continue  # `Session.attach` repeats its attempt
        inbox.hold()  # also if an earlier attempt released it
        if inbox.session_id is not None:
            observed.setdefault(inbox.key, []).append(inbox)
        elif inbox.started:
            tasks.append(_fill(read_missing(connection, inbox), [inbox]))
        else:
            inbox.release()
    for group in observed.values():
        interactive = any(inbox.interactive for inbox in group)
        tasks.append(_fill(subscribe(connection, group, interactive=interactive), group))
    await asyncio.gather(*tasks)


async def _fill(filling: Coroutine[Any, Any, object], inboxes: list[Inbox]) -> None:
    try:
        await filling
    except CallFailed as error:
        for inbox in inboxes:
            inbox.fail(NoSuchProcess(f"process {inbox.id} did not outlast the lost connection: {error}"))
            inbox.release()
