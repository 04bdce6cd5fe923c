"""The parts of `fs/applyEdits` that a worker is asked for. What is given, and the body, are JSON.

The work is that of `execserver.filesystem.edit_…`, which the daemon calls too when there is no sandbox.
"""

from __future__ import annotations

import json
import os

from execserver.filesystem import edit_looking, edit_operations, edit_steps
from execserver.filesystem.edit_model import Staging, Step, Watched, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.filesystem.cancel import Stop
    from execserver.fsworker.program.operations import Outcome

    Refuse = Callable[[int], None]
    """Raises when a device is one of those whose files are the kernel's."""

_NOTHING = (b"", None)


def _look(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    path, writes, digest, mode_from = json.loads(given)
    found = edit_looking.look(
        unpacked(path),
        writes=writes,
        digest=digest,
        mode_from=None if mode_from is None else unpacked(mode_from),
        stop=stop,
        refuse=refuse,
    )
    return json.dumps(found.to_json()).encode(), None


def _stage(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    number, made = edit_operations.stage(Staging.from_json(json.loads(given)), stop)
    try:
        refuse(os.fstat(number).st_dev)
    except BaseException:
        os.close(number)
        raise
    return json.dumps(made.to_json()).encode(), number


def _require_still(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    edit_looking.require_still([Watched.from_json(each) for each in json.loads(given)])
    return _NOTHING


def _do(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    edit_steps.do([Step.from_json(each) for each in json.loads(given)])
    return _NOTHING


def _undo(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    edit_steps.undo([Step.from_json(each) for each in json.loads(given)])
    return _NOTHING


def _discard_files(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    edit_operations.discard(_paths(given), [])
    return _NOTHING


def _discard_folders(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    edit_operations.discard([], _paths(given))
    return _NOTHING


def _sync(given: bytes, stop: Stop, refuse: Refuse) -> Outcome:
    edit_steps.sync(_paths(given))
    return _NOTHING


def _paths(given: bytes) -> list[str]:
    return [unpacked(path) for path in json.loads(given)]


PARTS: dict[str, Callable[[bytes, Stop, Refuse], Outcome]] = {
    "look": _look,
    "stage": _stage,
    "require_still": _require_still,
    "do": _do,
    "undo": _undo,
    "discard_files": _discard_files,
    "discard_folders": _discard_folders,
    "sync": _sync,
}
