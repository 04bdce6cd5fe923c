from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from execserver.supervisor import fd_store_protocol
from execserver.supervisor.fd_store_client import EndedProcess, FdStoreClient, StoredSlot
from execserver.supervisor.fd_store_protocol import EXITED, HANDED, KEEP, KEPT, REAPED, RELEASE
from execserver.supervisor.packets import ChannelError, channel_pair


class Rig:
    """A client, and the supervisor's ends of its channel."""

    def __init__(self) -> None:
        self.ours, theirs = channel_pair()
        self.ours.setblocking(True)
        self.nudge, nudge = os.pipe()
        os.set_blocking(self.nudge, False)
        self.client = FdStoreClient(theirs_blocking(theirs), nudge)

    def message(self) -> fd_store_protocol.Message:
        message = fd_store_protocol.receive(self.ours)
        assert message is not None
        return message

    def nudges(self) -> int:
        try:
            return len(os.read(self.nudge, 65536))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self.ours.close()
        os.close(self.nudge)
        self.client.close()


def theirs_blocking(end: socket.socket) -> socket.socket:
    end.setblocking(True)
    return end


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def null() -> Iterator[int]:
    descriptor = os.open("/dev/null", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_words_of_the_server_arrive_as_they_were_said(rig: Rig, null: int) -> None:
    rig.client.keep(1 << 63, 255, [null] * 200)
    rig.client.release(2)
    rig.client.reaped(3)
    kept, released, reaped = rig.message(), rig.message(), rig.message()
    assert (kept.kind, kept.number, kept.slot, len(kept.descriptors)) == (KEEP, 1 << 63, 255, 200)
    assert not any(os.get_inheritable(descriptor) for descriptor in kept.descriptors)
    assert (released.kind, released.number, released.descriptors) == (RELEASE, 2, [])
    assert (reaped.kind, reaped.number) == (REAPED, 3)
    assert rig.nudges() == 0
    for descriptor in kept.descriptors:
        os.close(descriptor)


def test_only_what_is_urgent_nudges(rig: Rig) -> None:
    rig.client.release(1, urgent=True)
    rig.client.keep(1, 0, [], urgent=True)
    assert rig.nudges() == 2


def test_a_full_channel_nudges_and_waits_for_room(rig: Rig, null: int) -> None:
    def send() -> None:
        for number in range(12_000):
            rig.client.keep(number, 1, [null])

    sender = threading.Thread(target=send)
    sender.start()
    while not rig.nudges():
        os.sched_yield()
    for number in range(12_000):
        message = rig.message()
        assert message.number == number
        os.close(message.descriptors[0])
    sender.join()


def test_a_supervisor_that_is_gone_is_no_error(rig: Rig, null: int) -> None:
    rig.ours.close()
    os.close(rig.nudge)
    rig.client.keep(1, 1, [null], urgent=True)
    rig.client.release(1, urgent=True)
    assert rig.client.receive() is None
    with pytest.raises(ChannelError, match="the supervisor ended during the takeover"):
        rig.client.take_over()
    rig.nudge = os.open("/dev/null", os.O_RDONLY)


def test_a_take_over_ends_with_handed_and_exits_come_after_it(rig: Rig, null: int) -> None:
    fd_store_protocol.send(rig.ours, KEPT, 0, 1, descriptors=[null])
    fd_store_protocol.send(rig.ours, KEPT, 5, 0, descriptors=[null, null])
    fd_store_protocol.send(rig.ours, EXITED, 5, value=9 << 8)
    fd_store_protocol.send(rig.ours, HANDED)
    fd_store_protocol.send(rig.ours, EXITED, 6, value=15)
    ledger, ends, exited = rig.client.take_over()
    assert isinstance(ledger, StoredSlot)
    assert isinstance(ends, StoredSlot)
    assert (ledger.number, ledger.slot, len(ledger.descriptors)) == (0, 1, 1)
    assert (ends.number, ends.slot, len(ends.descriptors)) == (5, 0, 2)
    assert exited == EndedProcess(5, 9 << 8)
    assert rig.client.receive() == EndedProcess(6, 15)
    assert rig.client.receive() is None
    for descriptor in ledger.descriptors + ends.descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("service", [False, True])
def test_a_process_that_does_not_fit_in_the_table_is_released_whole(
    rig: Rig, null: int, service: bool
) -> None:
    fd_store_protocol.send(rig.ours, KEPT, 1, 1, descriptors=[null])
    fd_store_protocol.send(rig.ours, KEPT, 0 if service else 2, 1, descriptors=[null])
    fd_store_protocol.send(rig.ours, KEPT, 0 if service else 2, 2, descriptors=[null] * 100)
    fd_store_protocol.send(rig.ours, EXITED, 2, value=0)
    fd_store_protocol.send(rig.ours, HANDED)
    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(null)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 10, hard))
    try:
        if service:
            with pytest.raises(ChannelError, match="descriptor table is full"):
                rig.client.take_over()
            assert open_descriptors() == before
            return
        (kept,) = rig.client.take_over()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(kept, StoredSlot)
    assert kept.number == 1
    assert open_descriptors() == before + 1
    released = rig.message()
    assert (released.kind, released.number) == (RELEASE, 2)
    os.close(kept.descriptors[0])


def test_an_invalid_message_is_an_error_and_leaves_no_descriptor(rig: Rig, null: int) -> None:
    before = open_descriptors()
    for data in (b"short", bytes(fd_store_protocol.HEADER.size + 1)):
        socket.send_fds(rig.ours, [data], [null])
        with pytest.raises(ChannelError, match="supervisor and server differ"):
            rig.client.take_over()
    assert open_descriptors() == before
