"""Where the reference refuses to read, a search, a glob and a watch show nothing; where it reads, they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sandbox.file_views import View
from tests.sandbox.host import Host
from tests.support.wire import Json, ReplyError
from tests.vectors.cases import Vectors, filled, load
from tests.vectors.policies import placeholders, prepare, sandbox

FILES = load("fs_sandbox")
READS = Vectors(
    FILES.stem,
    {},
    tuple(case for case in FILES.cases if case["method"] in {"fs/readFile", "fs/readDirectory"}),
)


def placed(host: Host, case: Json) -> tuple[View, Path]:
    """The view of a case, and its path."""
    tree = prepare(host, case["policy"])
    tree.add({}, {"ws/lnk": str(tree.out)})
    view = View(host, sandbox(case["policy"], tree))
    path = Path(filled(case["params"]["path"], placeholders(host, tree)))
    return view, path


@pytest.mark.parametrize("case", READS.cases, ids=READS.ids(lambda case: f"{case['policy']}/{case['name']}"))
def test_search_shows_what_the_case_reads_and_nothing_else(host: Host, case: Json) -> None:
    view, path = placed(host, case)
    is_read = bool(case.get("ok"))

    assert bool(view.searched(path)) is is_read
    if path.is_dir():
        assert bool(view.globbed(path)) is is_read


@pytest.mark.parametrize("case", READS.cases, ids=READS.ids(lambda case: f"{case['policy']}/{case['name']}"))
def test_watch_begins_where_the_case_reads_and_nowhere_else(host: Host, case: Json) -> None:
    view, path = placed(host, case)
    if case.get("ok"):
        view.watch(path).end()
    else:
        with pytest.raises(ReplyError):
            view.watch(path)


def test_cases_read_under_policies_that_allow_it_and_under_others() -> None:
    assert {bool(case.get("ok")) for case in READS.cases} == {True, False}
