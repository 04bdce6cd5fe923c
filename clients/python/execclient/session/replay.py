"""Filling inboxes: with what was written before they were there, or while the connection was lost.

What is ours is read; the daemon goes on notifying by itself. Another session's process has to be
subscribed to on each connection anew, which sends what came after a number and then goes on.
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
    """The members that name a process in a request."""
    session_id, process_id = key
    if session_id is None:
        return {"processId": process_id}
    return {"processId": process_id, "sessionId": session_id}


async def read_rest(connection: Connection, inbox: Inbox) -> None:
    """Fill an inbox with what came since its last event, and let it go on.

    Raises:
        ConnectionLost: the inbox stays held, and what it got stays.
        CallFailed: the process is not there.
    """
    params = {**reference(inbox.key), "maxBytes": None, "waitMs": 0}
    while not inbox.closed:
        before = inbox.last_seq
        page = inbox.fill(await connection.request("process/read", {**params, "afterSeq": before}))
        # A page ends before the chunk that would make it too large.
        is_last = sum(len(chunk.data) for chunk in page.chunks) + MAX_CHUNK_BYTES <= MAX_PAGE_BYTES
        # What came meanwhile may have overtaken something, too.
        if is_last and not (inbox.lacks_some() and inbox.last_seq > before):
            break
    inbox.release()


async def subscribe(
    connection: Connection, inboxes: Iterable[Inbox], *, interactive: bool
) -> Mapping[str, Json]:
    """Have the events of another session's process sent, to inboxes that are equally far.

    A second subscription moves the daemon's cursor; what comes twice then, an inbox drops.

    Returns:
        What the daemon says of the process.

    Raises:
        ConnectionLost: the inboxes stay held.
        CallFailed: the process is not there, or not for us.
    """
    inboxes = list(inboxes)
    params: dict[str, Json] = {
        **reference(inboxes[0].key),
        "afterSeq": max(inbox.last_seq for inbox in inboxes),
        "interactive": interactive,
    }
    state: Mapping[str, Json] = await connection.request("process/subscribe", params)
    for inbox in inboxes:
        inbox.state(state)
        inbox.release()
    return state


async def go_on(connection: Connection, inboxes: Iterable[Inbox]) -> None:
    """After a resume: whatever an inbox missed, and then what comes.

    A process that is not there any more fails alone.

    Raises:
        ConnectionLost: cut again; the inboxes stay held, and what they got stays.
    """
    tasks = []
    observed: dict[Key, list[Inbox]] = {}
    for inbox in inboxes:
        if inbox.attaching:
            continue  # whoever attaches it tries again
        inbox.hold()  # also if an earlier try got as far as to let it go on
        if inbox.session_id is not None:
            observed.setdefault(inbox.key, []).append(inbox)
        elif inbox.started:
            tasks.append(_alone(read_rest(connection, inbox), [inbox]))
        else:
            inbox.release()
    for group in observed.values():
        interactive = any(inbox.interactive for inbox in group)
        tasks.append(_alone(subscribe(connection, group, interactive=interactive), group))
    await asyncio.gather(*tasks)


async def _alone(filling: Coroutine[Any, Any, object], inboxes: list[Inbox]) -> None:
    try:
        await filling
    except CallFailed as error:
        for inbox in inboxes:
            inbox.fail(NoSuchProcess(f"process {inbox.id} did not outlast the lost connection: {error}"))
            inbox.release()
