"""The page of errors is made from the code, and notices when the wire's document says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from execprotocol.errors import RpcError
from tests.docs.pages import ROOT
from tools.wire_docs.errors_reference import DriftError, main, page
from tools.wire_docs.method_errors import ERRORS

PROTOCOL = ROOT / "docs" / "protocol.md"


def test_the_page_is_what_the_code_says() -> None:
    assert main(["--check", str(PROTOCOL), str(ROOT / "docs" / "reference" / "errors.md")]) == 0


def test_it_has_every_class_every_name_and_every_sentence() -> None:
    text = page(PROTOCOL.read_text())
    for kind in RpcError.__subclasses__():
        assert f"\n## {kind.code} `{kind.default_name}`\n" in text
    for error in ERRORS.values():
        assert f"\n### `{error.name}`\n" in text
        assert f"\n| {error.when} | " in text


@pytest.mark.parametrize(
    ("theirs", "other"),
    [("`handle_exists`", "`handle_is_there`"), ("| `internal_error`, `spawn_failed`", "| `internal_error`")],
)
def test_a_name_that_only_one_of_both_knows_is_an_error(
    theirs: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PROTOCOL.read_text()
    assert theirs in text
    changed = tmp_path / "protocol.md"
    changed.write_text(text.replace(theirs, other))
    with pytest.raises(DriftError):
        page(changed.read_text())
    assert main([str(changed), str(tmp_path / "errors.md")]) == 1
    assert "do not say the same" in capsys.readouterr().err
    assert not (tmp_path / "errors.md").exists()


def test_a_stale_page_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = tmp_path / "errors.md"
    stale.write_text("# Errors\n")
    assert main(["--check", str(PROTOCOL), str(stale)]) == 1
    assert "make schemas" in capsys.readouterr().err
