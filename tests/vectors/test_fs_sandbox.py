"""File requests under a policy, against the reference's answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.endpoint import OWN_SERVER
from tests.sandbox.host import Host
from tests.support.wire import Json, path_uri
from tests.vectors.cases import filled, load
from tests.vectors.policies import placeholders, prepare, sandbox

VECTORS = load("fs_sandbox")

URIS = ("path", "sourcePath", "destinationPath")
"""Parameters that stand as plain paths in the vectors, and as URIs on the wire."""


def _in_the_throw_away_root(case: Json) -> bool:
    outside = not case["params"].get("path", "{WS}").startswith("{WS}")
    return case["policy"] == "min" and case["method"] == "fs/createDirectory" and outside


STRICTER: list[tuple[Callable[[Json], bool], str]] = [
    (
        _in_the_throw_away_root,
        "the reference makes the folder in a root that is thrown away, and says that it did; ours says no",
    ),
]
"""Where we deliberately refuse what the reference allows."""


@pytest.mark.parametrize(
    "case", VECTORS.cases, ids=VECTORS.ids(lambda case: f"{case['policy']}/{case['name']}")
)
def test_file_request_is_answered_as_by_the_reference(host: Host, case: Json) -> None:
    tree = prepare(host, case["policy"])
    tree.add({}, {"ws/lnk": str(tree.out)})
    texts = placeholders(host, tree)
    params = filled(case["params"], texts)
    params |= {name: path_uri(params[name]) for name in URIS if name in params}
    confined = sandbox(case["policy"], tree)
    number = host.client.request(
        case["method"], params if confined is None else {**params, "sandbox": confined}
    )
    answer = host.client.reply(number)
    if OWN_SERVER and case.get("ok") and any(applies(case) for applies, _ in STRICTER):
        assert "error" in answer, answer
    elif "error" in case:
        assert "error" in answer, answer
        assert {name: answer["error"][name] for name in ("code", "message")} == filled(case["error"], texts)
    else:
        assert "error" not in answer, answer
        if "result" in case:
            assert answer["result"] == filled(case["result"], texts)
