from __future__ import annotations

import tomllib

import pytest

from execserver.configuration.sources import lines_of_keys


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", {}),
        ("a = 1", {"a": 1}),
        ("\n\n# a = 0\na = 1 # b = 2\nb = 2\n", {"a": 4, "b": 5}),
        ('"a b" = 1\n\'c\' = 2\n"d=1" = 3\n', {"a b": 1, "c": 2, "d=1": 3}),
        ('"\\u0061" = 1\n', {"a": 1}),
        ("x.y = 1\nx.z = 2\nw = 3", {"x": 1, "w": 3}),
        ("a = [\n  1, # b = 1\n  2,\n]\nb = 2\n", {"a": 1, "b": 5}),
        ('a = """\nb = 1\n[c]\n"""\nb = 2\n', {"a": 1, "b": 5}),
        ("a = '''\nb = \"\"\"\n'''\nb = 2", {"a": 1, "b": 4}),
        ('a = "b = 1 \\" # ["\nb = 2', {"a": 1, "b": 2}),
        ("a = { b = 1, c = 2 }\nd = 1", {"a": 1, "d": 2}),
        ("a = 1\n[t]\na = 2\nb = 3\n[u.v]\nc = 4\n", {"a": 1, "t": 2, "u": 5}),
        ("[[t]]\nx = 1\n[[t]]\nx = 2\n", {"t": 1}),
        ("  [ t ] # c\n a = 1", {"t": 1}),
        ("a = 1\r\nb = [\r\n1]\r\nc = 2\r\n", {"a": 1, "b": 2, "c": 4}),
    ],
)
def test_each_top_level_key_is_found_on_its_line(text: str, lines: dict[str, int]) -> None:
    assert lines_of_keys(text) == lines
    assert set(lines) == set(tomllib.loads(text))
