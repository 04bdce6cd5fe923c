"""On which line of a TOML text a top-level key stands.

tomllib gives no places, so it is asked itself: the text is taken line by line, and a piece that parses
alone is one statement (or blank, or a comment). Inside a string or a list that goes over several lines
no piece parses, so text in there that looks like a key is never taken for one.
"""

from __future__ import annotations


def lines_of_keys(text: str) -> dict[str, int]:
    """The line of each top-level key, tables and dotted keys among them, counted from 1.

    Args:
        text: valid TOML.
    """
    import tomllib  # not at the start of every server

    lines: dict[str, int] = {}
    statement, start, in_table = "", 1, False
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        try:
            keys = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        is_header = statement.lstrip(" \t").startswith("[")
        in_table = in_table or is_header
        if is_header or not in_table:
            for key in keys:
                lines.setdefault(key, start)
        statement, start = "", number + 1
    return lines
