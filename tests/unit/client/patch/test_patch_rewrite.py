"""One file: its text before, the chunks, its text afterwards."""

from __future__ import annotations

import pytest

from execclient.patch.errors import PatchMismatch
from execclient.patch.model import Repair
from execclient.patch.parse import UpdateFile, parse_patch
from execclient.patch.rewrite import UpdateName, is_rewritten, rewrite


def chunks_of(body: str) -> UpdateFile:
    hunk = parse_patch(f"*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch").hunks[0]
    assert isinstance(hunk, UpdateFile)
    return hunk


def rewritten(text: str, body: str) -> str:
    return rewrite(text, chunks_of(body).chunks, UpdateName("/w/f", 1))


def refused(text: str, body: str) -> PatchMismatch:
    with pytest.raises(PatchMismatch) as caught:
        rewritten(text, body)
    return caught.value


def repair_of(text: str, body: str) -> Repair:
    return refused(text, body).repair


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        pytest.param("a\nb\n", "-a\n+A", "A\nb\n", id="a line is replaced"),
        pytest.param("", "+a", "a\n", id="an empty file gets lines"),
        pytest.param("\n", "+x", "\nx\n", id="so does a file of one empty line"),
        pytest.param("a\nb\n", "@@ a\n+x", "a\nb\nx\n", id="only new lines go to the end, after any context"),
        pytest.param("a\nb\n", "+x\n@@\n-a\n+A", "A\nb\nx\n", id="and do not move the search"),
        pytest.param("a\nb\n", "-a\n+x\n+y", "x\ny\nb\n", id="lines become more"),
        pytest.param("p\nq\np\n", "@@ q\n-p\n+P", "p\nq\nP\n", id="a context leads to the second"),
        pytest.param("p\nq\np\n", "-p\n+P\n*** End of File", "p\nq\nP\n", id="the end leads to the last"),
        pytest.param("  a  \nb\n  c\n", "-a\n+A\n b\n-c\n+C", "A\nb\nC\n", id="blanks are forgiven"),
        pytest.param(" a\n b \nc\n", " a\n b\n-c\n+C", " a\n b \nC\n", id="what stays keeps its blanks"),
        pytest.param("a\nb\n", "-b\n+B\n ", "a\nB\n", id="an empty last line may be the line end"),
        pytest.param("a\n\nb\n", " a\n \n-b", "a\n\n", id="or a line"),
        pytest.param("a\nb\n", "-a\n-\n+x\n+", "x\nb\n", id="an added one goes with it"),
        pytest.param("x \u2013 y\n", "-x - y\n+z", "z\n", id="typography is forgiven"),
        pytest.param(
            "a\x0bb\x1cc\u2028d\n", "-a\x0bb\x1cc\u2028d\n+e", "e\n", id="other separators end no line"
        ),
        pytest.param("a\nb\nc\n", " a\n b", "a\nb\nc\n", id="a chunk may change nothing"),
    ],
)
def test_chunks_are_fitted_in(before: str, body: str, after: str) -> None:
    assert rewritten(before, body) == after


def test_chunks_are_in_order_and_share_no_lines() -> None:
    assert str(refused("a\nb\n", "-b\n+B\n@@\n-a")) == "Failed to find expected lines in /w/f:\na"
    assert str(refused("a\nb\n", "-a\n b\n@@\n b\n+x")) == "Failed to find expected lines in /w/f:\nb"
    assert str(refused("a\nb\n", "-b\n@@ b\n+x")) == "Failed to find context 'b' in /w/f"


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        pytest.param("a\nb\nc", "-a\n+A", "A\nb\nc", id="the last line stays outside of the chunk"),
        pytest.param("a\nb", "-a\n+A\n b", "A\nb", id="it stays as context"),
        pytest.param("a\nb", "-b\n+B", "a\nB", id="it is replaced"),
        pytest.param("a\nb", "-b\n+B\n+C", "a\nB\nC", id="it is replaced by two"),
        pytest.param("a\nb\nc", "-b\n-c\n+x", "a\nx", id="it is one of two that are replaced by one"),
        pytest.param("a\nb", "-b\n+B\n*** End of File", "a\nB", id="it is found from the end"),
        pytest.param("a\nb", " a\n-b", "a\n", id="it is removed, and the one before stays"),
        pytest.param("a\nb", " b\n+c", "a\nb\nc", id="a line is added behind it"),
        pytest.param("a\nb", "+c\n@@\n+d", "a\nb\nc\nd", id="two lines are, by two chunks"),
        pytest.param("a\nb", "+c\n@@\n-b", "a\nc", id="it is removed, and a line is added"),
        pytest.param("a", "+b", "a\nb", id="the file has no line end at all"),
        pytest.param("a\r\nb", " b\n+c", "a\r\nb\r\nc", id="the others end in CRLF"),
        pytest.param("a\nb\r", "-a\n+A", "A\nb\r", id="it ends in a lone CR"),
        pytest.param("a\nb", "-b\n+", "a\n\n", id="except for an empty line, which would be none"),
        pytest.param("a\nb ", "-b\n+c\n+b", "a\nc\nb ", id="a line is added in front of it"),
    ],
)
def test_a_file_without_a_final_line_end_has_none_afterwards(before: str, body: str, after: str) -> None:
    assert rewritten(before, body) == after


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        pytest.param("a\r\nb\nc\r\n", "-b\n+B", "a\r\nB\nc\r\n", id="that of the line that is replaced"),
        pytest.param("a\nb\r\nc\n", "-a\n-b\n+A\n+B", "A\nB\r\nc\n", id="each its own"),
        pytest.param("a\nb\r\nc\n", "-b\n+x\n+y", "a\nx\r\ny\r\nc\n", id="that of the one before it"),
        pytest.param("a\r\nb\n", " a\n+x\n b", "a\r\nx\r\nb\n", id="also where that one stays"),
        pytest.param("a\r\nb\n", "+x\n a", "x\r\na\r\nb\n", id="that of the one behind it at the head"),
        pytest.param("a\r\nb\nc\n", " a\n-b\n c\n+x", "a\r\nc\nx\n", id="not that of one that is removed"),
        pytest.param("\r\n", "+x", "\r\nx\r\n", id="that of an empty line, too"),
        pytest.param("a\rb\r", " a\n+x\n b", "a\rx\rb\r", id="a lone CR where there is nothing else"),
        pytest.param("1%\r2%\nb\nc\n", "-c\n+C", "1%\r2%\nb\nC\n", id="no lone CR where there is LF"),
        pytest.param("1%\r2%\nb\n", "+x\n b", "1%\r2%\nx\nb\n", id="none behind a line with one"),
        pytest.param("1%\r2%\nb\n", " 1%\r2%\n+x", "1%\r2%\nx\nb\n", id="none behind one that is named"),
        pytest.param("1%\r2%\nb\n", " 1%\n+x\n 2%", "1%\rx\n2%\nb\n", id="none between its halves"),
        pytest.param(
            "1%\r2%\nb\n", "-1%\n+0%\n 2%", "0%\r2%\nb\n", id="but the CR of a half that is replaced"
        ),
        pytest.param("a\r\r\nb\n", "-a\r\r\n+A\r\r", "A\r\r\nb\n", id="a CR in front of CRLF is text"),
    ],
)
def test_a_new_line_has_the_line_end(before: str, body: str, after: str) -> None:
    assert rewritten(before, body) == after


@pytest.mark.parametrize(
    ("before", "body"),
    [
        pytest.param("a\nb\r\nc", "-b\n+b", id="CRLF among LF"),
        pytest.param("a\nb", "-b\n+b", id="without a line end"),
        pytest.param("a\n  b\t\nc\n", "-b\n+b", id="with other blanks"),
        pytest.param("x \u2013 y\n", "-x - y\n+x - y", id="with other dashes"),
        pytest.param(
            "a\u2028b\x85c\x0cd\x0be\x1cf\0g\r\n",
            "-a\u2028b\x85c\x0cd\x0be\x1cf\0g\n+a\u2028b\x85c\x0cd\x0be\x1cf\0g",
            id="with other separators",
        ),
        pytest.param("\ufeffa\r\nb\n", "-a\n-b\n+a\n+b", id="behind a byte order mark"),
        pytest.param("\ufeffa\r\nb\n", "-\ufeffa\n+\ufeffa", id="with the byte order mark"),
        pytest.param("\ufeff\ufeffa\n", "-\ufeffa\n+\ufeffa", id="with the second of two marks"),
        pytest.param("1%\r2%\nb\n", "-1%\r2%\n+1%\r2%", id="with a lone CR"),
        pytest.param("1%\r2%\nb\n", "-2%\n+2%", id="behind a lone CR"),
        pytest.param("a\rb", "-b\n+b", id="in a file of CR"),
    ],
)
def test_a_line_that_is_replaced_by_itself_stays_as_it_is(before: str, body: str) -> None:
    assert rewritten(before, body) == before


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        pytest.param("\ufeffa\nb\n", "-a\n+A", "\ufeffA\nb\n", id="the first line is replaced"),
        pytest.param("\ufeffa\nb\n", "-a", "\ufeffb\n", id="it is removed"),
        pytest.param("\ufeffa\nb\n", "+x\n a", "\ufeffx\na\nb\n", id="a line is added in front of it"),
        pytest.param("\ufeffa\nb\n", "@@ a\n-b\n+B", "\ufeffa\nB\n", id="it is the context of a chunk"),
        pytest.param("\ufeff", "+x", "\ufeffx\n", id="the file has nothing else"),
        pytest.param("\ufeffa", "-a\n+A", "\ufeffA", id="the only line has no line end"),
        pytest.param("\ufeffa\n", "-\ufeffa\n+\ufeffA", "\ufeffA\n", id="the patch has it, too"),
        pytest.param("\ufeffa\n", "-a\n+\ufeffA", "\ufeffA\n", id="the patch has it in the new line"),
    ],
)
def test_a_byte_order_mark_stays_when(before: str, body: str, after: str) -> None:
    assert rewritten(before, body) == after


def test_a_byte_order_mark_goes_when_the_patch_says_so() -> None:
    assert rewritten("\ufeffa\nb\n", "-\ufeffa\n+a") == "a\nb\n"


def test_the_reference_ends_all_lines_and_new_ones_as_the_first() -> None:
    chunks = chunks_of("-b\n+B").chunks

    for before, after in [("a\nb\r\nc", "a\nB\nc\n"), ("a\r\nb", "a\r\nB\r\n"), ("b", "B\n")]:
        assert rewrite(before, chunks, UpdateName("/w/f", 1), as_reference=True) == after


def test_a_mismatch_tells_the_place_that_comes_nearest() -> None:
    text = "one\ndef f():\n    return 1\n\ndef g():\n    return 2\n"

    repair = repair_of(text, "-one\n+ONE\n@@\n def g():\n-  return 3\n+  return 4")

    assert (repair.hunk, repair.chunk, repair.patch_line, repair.searched_from) == (1, 2, 5, 2)
    best = repair.candidates[0]
    assert (best.line, best.matching, best.lines) == (5, 1, ("def g():", "    return 2"))
    assert [(each.line, each.expected, each.found, each.reason) for each in best.differences] == [
        (6, "  return 3", "    return 2", "text")
    ]
    assert not best.too_early
    assert "6: expected '  return 3', found '    return 2'" in repair.describe()


def test_a_mismatch_tells_that_chunks_are_out_of_order() -> None:
    repair = repair_of("a\nb\n", "-b\n+B\n@@\n-a\n+A")

    assert [(each.line, each.too_early, each.differences) for each in repair.candidates] == [(1, True, ())]
    assert "before the place of an earlier chunk" in repair.describe()


def test_a_mismatch_tells_a_line_that_reads_alike() -> None:
    repair = repair_of("x\ncalculate_totals(order)\n", "-calculate_total(order)\n+y")

    assert [each.line for each in repair.candidates] == [2]


def test_a_mismatch_tells_what_is_beyond_the_end() -> None:
    repair = repair_of("a\nb\n", " b\n-c")

    assert [(each.expected, each.found, each.reason) for each in repair.candidates[0].differences] == [
        ("c", None, "missing")
    ]
    assert "the file ends before" in repair.describe()


def test_a_context_that_is_missing_is_what_is_told() -> None:
    repair = repair_of("def f(x):\n  1\n", "@@ def f(y):\n-  1")

    assert (repair.wanted, repair.expected) == ("context", ("def f(y):",))
    assert repair.candidates[0].lines == ("def f(x):",)


def test_a_file_that_has_nothing_of_it_gives_no_candidates() -> None:
    repair = repair_of("a\n" * 1000, "-something else\n+y")

    assert repair.candidates == ()
    assert "No line of it" in repair.describe()


def test_a_chunk_that_is_there_already_is_told() -> None:
    assert repair_of("new text\nb\n", "-old text\n+new text").already_applied
    assert not repair_of("c\nb\n", "-old text\n+new text").already_applied


@pytest.mark.parametrize(
    ("text", "body", "answer"),
    [
        pytest.param("a\nnew\nb\n", " a\n-old\n+new\n b", True, id="the result is there"),
        pytest.param("a\nb\n", " a\n-old\n b", True, id="what was removed is gone, between its neighbors"),
        pytest.param("a\nb\n", " a\n-old", False, id="one neighbor proves nothing"),
        pytest.param("a\n}\n", "-old\n+}", False, id="a bracket proves nothing"),
        pytest.param("new\nnew\n", "-old\n+new", False, id="nor what is there twice"),
        pytest.param("  new\n", "-old\n+new", False, id="nor other blanks in what is added"),
        pytest.param(" a \nnew\n", " a\n-old\n+new", True, id="but in what stays"),
        pytest.param("one\ntwo\n", "-1\n+one\n@@\n-2\n+two", True, id="all chunks count"),
        pytest.param("one\n2\n", "-1\n+one\n@@\n-2\n+two", False, id="not only the first"),
        pytest.param("two\none\n", "-1\n+one\n@@\n-2\n+two", False, id="in their order"),
        pytest.param("f\nnew\n", "@@ f\n-old\n+new", True, id="after their context"),
        pytest.param("new\nf\n", "@@ f\n-old\n+new", False, id="and not before it"),
        pytest.param("\ufeffnew", "-old\n+new", True, id="behind a byte order mark"),
        pytest.param("1%\rnew\nb\n", "-1%\rold\n+1%\rnew", True, id="with a lone CR"),
    ],
)
def test_a_result_is_recognized(text: str, body: str, answer: bool) -> None:
    assert is_rewritten(text, chunks_of(body).chunks) is answer
