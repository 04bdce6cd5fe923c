"""Every fault in every state: bytes, exits, writes, processes and files are all accounted for.

`make faults` runs every cell; `make test` a part of them, in which every fault and every state has its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.matrix.faults import FAULTS, Fault, KillClient
from tests.faults.matrix.scene import Scene
from tests.faults.matrix.states import STATES, State
from tests.faults.service import Serve
from tests.faults.sizes import LONG


def _cells() -> Iterator[tuple[type[Fault], type[State]]]:
    for row, fault in enumerate(FAULTS):
        for column, state in enumerate(STATES):
            if LONG or row == 0 or (row + column) % len(FAULTS) == 0:
                yield fault, state


def _name(part: type[Fault] | type[State]) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in part.__name__).strip()


@pytest.mark.parametrize(("fault_type", "state_type"), list(_cells()), ids=_name)
def test_whatever_happens_whenever_nothing_is_lost_doubled_or_left(
    fault_type: type[Fault], state_type: type[State], serve: Serve, folder: Path
) -> None:
    fault = fault_type()
    scene = Scene(serve, folder, state_type.point, **fault.options(folder))
    try:
        state = state_type(scene)
        if fault_type is KillClient:
            scene.move_client_out()
        state.enter()
        if state.point:
            scene.wait_stopped()
        with fault.apply(scene):
            scene.go_on()
        fault.after(scene, state.marks)
        if not fault.ends:
            state.finish()
            scene.serves_on()
    finally:
        scene.end()
