"""Shapes of the sandbox member, against what the reference made of them."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.sandbox.host import Done, Host
from tests.support.wire import Json, ReplyError
from tests.vectors.cases import load

VECTORS = load("sandbox_wire")

RECORDED: Final = "/srv"
"""Where the reference's workspace was: `/srv/work`, and other folders beside it."""

LAUNCHER_DIED: Final = 101
"""The exit code when the reference's own launcher gave up. Ours may refuse the request instead."""


@pytest.mark.parametrize("case", VECTORS.cases, ids=VECTORS.ids(lambda case: str(case["name"])))
def test_shape_means_what_it_means_to_the_reference(host: Host, case: Json) -> None:
    tree = host.tree()
    work = tree.base / "work"
    tree.ws.rename(work)
    recorded = json.dumps(case["sandbox"]).replace(f"file://{RECORDED}/", f"file://{tree.base}/")
    sandbox = json.loads(recorded.replace(f'"{RECORDED}/', f'"{tree.base}/'))
    mark = work / "wire"
    command = ["/bin/sh", "-c", f"touch {mark} && printf W"]
    members = {"cwd": f"file://{work}", **case.get("also", {})}
    answer: Done | ReplyError
    try:
        answer = host.run(tree, command, sandbox, **members)
    except ReplyError as error:
        answer = error
    assert mark.exists() is case.get("wrote", False), answer
    if isinstance(answer, ReplyError):
        if "error" in case:
            assert answer.code == case["error"]["code"]
        else:
            assert case["exit"] == LAUNCHER_DIED, answer
        return
    assert "error" not in case, answer
    assert (answer.exit_code == 0) is (case["exit"] == 0), answer
    assert answer.sandbox_type == case["sandboxType"]
    if case["exit"] != LAUNCHER_DIED:
        assert answer.denied is case["sandboxDenied"], answer
