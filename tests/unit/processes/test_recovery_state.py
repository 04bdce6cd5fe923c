"""What a server finds of the one before it."""

from __future__ import annotations

import os

import pytest

from execserver.processes.recovery_state import RecoveryState
from execserver.supervisor.fd_store_client import StoredSlot
from execserver.supervisor.fd_store_protocol import ARENA, LEDGER, PROCESS, SERVICE


def test_a_server_that_died_between_ledger_and_index_had_not_begun() -> None:
    assert not RecoveryState.has_begun([])
    for slot in (LEDGER, ARENA):
        fd = os.memfd_create("half")
        assert not RecoveryState.has_begun([StoredSlot(SERVICE, slot, [fd])])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert RecoveryState.has_begun([StoredSlot(SERVICE, LEDGER, []), StoredSlot(SERVICE, ARENA, [])])
    assert RecoveryState.has_begun([StoredSlot(SERVICE, LEDGER, []), StoredSlot(1, PROCESS, [])])
