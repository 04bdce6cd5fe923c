from __future__ import annotations

from execclient.commands.patch import format_diff

DIFF = """\
diff --git a/f b/f
index 1..2 100644
--- a/f
+++ b/f
@@ -1,4 +1,3 @@
 diff --git a/x b/x
--- gone
-@@ gone
+++ come
diff --git a/g b/g
deleted file mode 100644
"""
NO_LINE_END = "@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n"

BOLD, DIM, RED, GREEN, CYAN = (f"\x1b[{number}m" for number in (1, 2, 31, 32, 36))


def colors(diff: str) -> list[str]:
    """How each line of a colored diff begins, up to its text."""
    lines = format_diff(diff, "always").removesuffix("\n").split("\n")
    return [line[: line.index("m") + 1] if line.startswith("\x1b") else "" for line in lines]


def test_a_line_is_colored_by_where_it_stands_and_not_by_its_first_letters() -> None:
    assert colors(DIFF) == [BOLD, DIM, BOLD, BOLD, CYAN, "", RED, RED, GREEN, BOLD, BOLD]


def test_a_missing_line_end_is_a_remark() -> None:
    assert colors(NO_LINE_END) == [CYAN, RED, GREEN, DIM]


def test_without_colors_the_text_of_a_colored_diff_is_left() -> None:
    colored = format_diff(DIFF, "always")
    for code in (BOLD, DIM, RED, GREEN, CYAN, "\x1b[0m"):
        colored = colored.replace(code, "")

    assert colored == DIFF


def test_what_a_terminal_would_obey_is_shown_by_its_number_but_tabs_stay() -> None:
    diff = "@@ -1 +1 @@\n-\ta\r\n+\x1b]0;title\x07\u202e\n"

    assert "-\ta\\r\x1b[0m\n" in format_diff(diff, "always")
    assert "+\\x1b]0;title\\x07\\u202e\x1b[0m\n" in format_diff(diff, "always")


def test_nothing_has_no_lines() -> None:
    assert format_diff("", "always") == ""
