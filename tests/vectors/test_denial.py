"""What the words of an output say about a denial."""

from __future__ import annotations

import pytest

from execserver.sandbox.denial import denied
from tests.support.wire import Json
from tests.vectors.cases import load

VECTORS = load("denial")


@pytest.mark.parametrize("case", VECTORS.cases, ids=VECTORS.ids(lambda case: str(case["id"])))
def test_output_is_judged_as_the_reference_judges_it(case: Json) -> None:
    assert denied(case["exit"], case["output_tail"].encode()) is case["sandboxDenied"]
