"""The tables were held against the reference (0.169.0) and its reader, serde_json."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.tools.json_shapes import (
    BOOLEAN,
    I32,
    TEXT,
    U64,
    Anything,
    Enumeration,
    ListOf,
    Member,
    Nullable,
    Object,
    ShapeError,
    read_text,
    shown,
)
from execclient.tools.json_text import MAX_DEPTH, JsonTextError, Reader

ARGUMENTS = Object(
    "ToolEnvironmentArgs",
    1,
    (
        Member("cmd", TEXT, required=True),
        Member("workdir", Nullable(TEXT)),
        Member("login", Nullable(BOOLEAN)),
        Member("tty", BOOLEAN),
        Member("yield_time_ms", U64),
        Member("session_id", I32),
        Member("sandbox_permissions", Enumeration(("use_default", "require_escalated"))),
        Member("justification", Nullable(TEXT), aliases=("why",)),
        Member("prefix_rule", Nullable(ListOf(TEXT))),
        Member("additional_permissions", Nullable(Anything())),
    ),
)

KNOWN = (
    "one of `cmd`, `workdir`, `login`, `tty`, `yield_time_ms`, `session_id`, `sandbox_permissions`,"
    " `justification`, `prefix_rule`, `additional_permissions`"
)

REFUSED: list[tuple[str, str]] = [
    # no object at all
    ("", "EOF while parsing a value at line 1 column 0"),
    ("  \n ", "EOF while parsing a value at line 2 column 1"),
    ("notjson", "expected ident at line 1 column 2"),
    ("ls -la", "expected value at line 1 column 1"),
    ("\ufeff{}", "expected value at line 1 column 1"),
    ("null", "invalid type: null, expected struct ToolEnvironmentArgs at line 1 column 4"),
    ("true", "invalid type: boolean `true`, expected struct ToolEnvironmentArgs at line 1 column 4"),
    ("12", "invalid type: integer `12`, expected struct ToolEnvironmentArgs at line 1 column 2"),
    ('"ls"', 'invalid type: string "ls", expected struct ToolEnvironmentArgs at line 1 column 4'),
    ("[]", "invalid length 0, expected struct ToolEnvironmentArgs with 1 element at line 1 column 2"),
    (' ["ls"]', "invalid type: sequence, expected struct ToolEnvironmentArgs at line 1 column 2"),
    # members
    ("{}", "missing field `cmd` at line 1 column 2"),
    ("{\n}", "missing field `cmd` at line 2 column 1"),
    ('{"tty": true}', "missing field `cmd` at line 1 column 13"),
    ('{"x": 1}', f"unknown field `x`, expected {KNOWN} at line 1 column 4"),
    ('{"x"  : 1}', f"unknown field `x`, expected {KNOWN} at line 1 column 6"),
    ('{"cmd": "a", "cmd": "b"}', "duplicate field `cmd` at line 1 column 18"),
    ('{"why": "a", "justification": "b"}', "duplicate field `justification` at line 1 column 28"),
    # punctuation
    ("{", "EOF while parsing an object at line 1 column 1"),
    ('{"cmd"', "EOF while parsing an object at line 1 column 6"),
    ('{"cmd":', "EOF while parsing a value at line 1 column 7"),
    ('{"cmd": "a"', "EOF while parsing an object at line 1 column 11"),
    ('{"cmd": "a",', "EOF while parsing a value at line 1 column 12"),
    ('{"cmd": "a",}', "trailing comma at line 1 column 13"),
    ('{,"cmd": "a"}', "key must be a string at line 1 column 2"),
    ("{cmd: 1}", "key must be a string at line 1 column 2"),
    ("{'cmd': 1}", "key must be a string at line 1 column 2"),
    ('{"cmd" "a"}', "expected `:` at line 1 column 8"),
    ('{"cmd": "a" "tty": true}', "expected `,` or `}` at line 1 column 13"),
    ('{"cmd": }', "expected value at line 1 column 9"),
    ('{"cmd": "a"} {}', "trailing characters at line 1 column 14"),
    ('{"cmd": "a"}}', "trailing characters at line 1 column 13"),
    # values of another type
    ('{"cmd": 1}', "invalid type: integer `1`, expected a string at line 1 column 9"),
    ('{"cmd": null}', "invalid type: null, expected a string at line 1 column 12"),
    ('{"cmd": ["a"]}', "invalid type: sequence, expected a string at line 1 column 8"),
    ('{"cmd": {"a": 1}}', "invalid type: map, expected a string at line 1 column 8"),
    ('{"cmd": 1.5}', "invalid type: floating point `1.5`, expected a string at line 1 column 11"),
    ('{"cmd": tru}', "expected ident at line 1 column 12"),
    ('{"cmd": nul', "EOF while parsing a value at line 1 column 11"),
    ('{"tty": "yes"}', 'invalid type: string "yes", expected a boolean at line 1 column 13'),
    ('{"tty": null}', "invalid type: null, expected a boolean at line 1 column 12"),
    ('{"tty": 0}', "invalid type: integer `0`, expected a boolean at line 1 column 9"),
    ('{"login": "q\\"\\n"}', 'invalid type: string "q\\"\\n", expected a boolean at line 1 column 17'),
    # numbers
    ('{"yield_time_ms": -1}', "invalid value: integer `-1`, expected u64 at line 1 column 20"),
    ('{"yield_time_ms": 1.0}', "invalid type: floating point `1.0`, expected u64 at line 1 column 21"),
    ('{"yield_time_ms": "5"}', 'invalid type: string "5", expected u64 at line 1 column 21'),
    ('{"yield_time_ms": 01}', "invalid number at line 1 column 20"),
    ('{"yield_time_ms": -}', "invalid number at line 1 column 20"),
    ('{"yield_time_ms": 1.}', "invalid number at line 1 column 21"),
    ('{"yield_time_ms": 1e}', "invalid number at line 1 column 21"),
    ('{"yield_time_ms": 1.', "EOF while parsing a value at line 1 column 20"),
    ('{"yield_time_ms": 1e400}', "number out of range at line 1 column 23"),
    ('{"yield_time_ms": +1}', "expected value at line 1 column 19"),
    ('{"session_id": 2147483648}', "invalid value: integer `2147483648`, expected i32 at line 1 column 25"),
    # lists
    ('{"prefix_rule": "git"}', 'invalid type: string "git", expected a sequence at line 1 column 21'),
    ('{"prefix_rule": {}}', "invalid type: map, expected a sequence at line 1 column 16"),
    ('{"prefix_rule": ["a" "b"]}', "expected `,` or `]` at line 1 column 22"),
    ('{"prefix_rule": ["a",]}', "trailing comma at line 1 column 22"),
    ('{"prefix_rule": ["a"', "EOF while parsing a list at line 1 column 20"),
    ('{"prefix_rule": ["a",', "EOF while parsing a value at line 1 column 21"),
    ('{"prefix_rule": [1]}', "invalid type: integer `1`, expected a string at line 1 column 18"),
    # words
    (
        '{"cmd": "ls", "sandbox_permissions": "bogus"}',
        "unknown variant `bogus`, expected `use_default` or `require_escalated` at line 1 column 44",
    ),
    ('{"sandbox_permissions": null}', "expected value at line 1 column 25"),
    # strings
    ('{"cmd": "a', "EOF while parsing a string at line 1 column 10"),
    ('{"cmd": "a\\', "EOF while parsing a string at line 1 column 11"),
    ('{"cmd": "a\\x"}', "invalid escape at line 1 column 12"),
    ('{"cmd": "\\u00g0"}', "invalid escape at line 1 column 15"),
    ('{"cmd": "\\u00', "EOF while parsing a string at line 1 column 13"),
    (
        '{"cmd": "a\nb"}',
        "control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0",
    ),
    (
        '{"cmd": "a\tb"}',
        "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 11",
    ),
    ('{"cmd": "\\udc00"}', "lone leading surrogate in hex escape at line 1 column 15"),
    ('{"cmd": "\\ud800\\u0041"}', "lone leading surrogate in hex escape at line 1 column 21"),
    ('{"cmd": "\\ud800"}', "unexpected end of hex escape at line 1 column 16"),
    # columns are bytes, lines are those of the text
    ('{"cmd": "é€", "tty": 1}', "invalid type: integer `1`, expected a boolean at line 1 column 25"),
    (
        '{\r\n  "cmd": "a",\n  "tty": 1\n}',
        "invalid type: integer `1`, expected a boolean at line 3 column 10",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[repr(text) for text, _ in REFUSED])
def test_a_text_is_refused_in_the_words_and_at_the_place_of_the_reference(text: str, message: str) -> None:
    with pytest.raises(JsonTextError) as caught:
        read_text(ARGUMENTS, text)

    assert str(caught.value) == message
    assert message == f"{caught.value.reason} at line {caught.value.line} column {caught.value.column}"


def test_members_come_by_their_proper_names_and_values_as_they_are() -> None:
    text = ' {"why":"J?", "cmd" : "a\\n\\u00e9\\ud83d\\ude00\\/\\"", "workdir":null,"prefix_rule":["a" ]}'

    assert read_text(ARGUMENTS, text + "\r\n") == {
        "justification": "J?",
        "cmd": 'a\né😀/"',
        "workdir": None,
        "prefix_rule": ("a",),
    }


def test_bounds_belong_to_the_integers() -> None:
    text = f'{{"cmd": "", "yield_time_ms": {2**64 - 1}, "session_id": {-(2**31)}}}'

    assert read_text(ARGUMENTS, text) == {"cmd": "", "yield_time_ms": 2**64 - 1, "session_id": -(2**31)}
    with pytest.raises(JsonTextError, match=r"floating point `1\.8446744073709552e\+19`, expected u64"):
        read_text(U64, str(2**64))
    with pytest.raises(JsonTextError, match=r"floating point `-0.0`, expected u64"):
        read_text(U64, "-0")


def test_nesting_ends_one_level_below_the_limit() -> None:
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    read_text(Anything(), nested(MAX_DEPTH - 1))
    with pytest.raises(JsonTextError) as caught:
        read_text(Anything(), nested(MAX_DEPTH))
    assert str(caught.value) == "recursion limit exceeded at line 1 column 128"


def test_half_a_character_is_refused_where_its_string_ends() -> None:
    for text in ('{"cmd": "\udc80"}', b'{"cmd": "\xed\xb2\x80"}', b'{"cmd": "\xff\xfe "}'):
        with pytest.raises(JsonTextError) as caught:
            read_text(ARGUMENTS, text)
        assert str(caught.value) == "invalid unicode code point at line 1 column 13"


@pytest.mark.parametrize("part", ["\\n", "a", "é", "\\u00e9", '", "', "1", "]"])
def test_reading_takes_time_in_proportion_to_the_text(part: str) -> None:
    text = '{"prefix_rule": ["' + part * 100_000

    begun = time.process_time()
    with pytest.raises(JsonTextError):
        read_text(ARGUMENTS, text)

    # The square of 100,000 would take a hundred times as long as this allows.
    assert time.process_time() - begun < 2


def test_a_long_number_is_out_of_range_and_costs_nothing() -> None:
    with pytest.raises(JsonTextError, match="number out of range"):
        read_text(U64, "9" * 200_000)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(value=VALUES.filter(lambda value: "Infinity" not in json.dumps(value)), ascii_only=st.booleans())
@settings(max_examples=80, deadline=None)
def test_what_python_writes_is_read_as_it_was(value: Any, ascii_only: bool) -> None:
    assert read_text(Anything(), json.dumps(value, ensure_ascii=ascii_only, indent=1)) == value


@given(text=st.text(alphabet='{}[]",:\\u0d8e1.-ntrf \n\x01é'))
@settings(max_examples=150, deadline=None)
def test_what_python_refuses_is_refused_and_nothing_else(text: str) -> None:
    try:
        # Python lets through halves of characters, and infinite numbers; it writes neither like this.
        json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False).encode()
        sound = True
    except ValueError:
        sound = False
    try:
        read_text(Anything(), text)
    except JsonTextError:
        read = False
    else:
        read = True
    assert read == sound


# -- skipped members


ONE = Object("One", 1, (Member("one", TEXT),), ignores_others=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "expected value at line 1 column 7"),
        ("tru", "expected ident at line 1 column 10"),
        ("[1,]", "expected value at line 1 column 10"),
        ("[1 2]", "expected `,` or `]` at line 1 column 10"),
        ("[1}", "expected `,` or `]` at line 1 column 9"),
        ('{"a": 1 "b": 2}', "expected `,` or `}` at line 1 column 15"),
        ('{"a" 1}', "expected `:` at line 1 column 12"),
        ("{1: 2}", "key must be a string at line 1 column 8"),
        ('{"a": 1,}', "key must be a string at line 1 column 15"),
        ("01", "invalid number at line 1 column 8"),
        ("-", "invalid number at line 1 column 8"),
        ("1.", "invalid number at line 1 column 9"),
        ("1e+", "invalid number at line 1 column 10"),
        ('"a\\x"', "invalid escape at line 1 column 10"),
        ('"\\u00g0"', "invalid escape at line 1 column 13"),
        (
            '"a\tb"',
            "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 8",
        ),
    ],
)
def test_a_skipped_member_is_still_json(value: str, message: str) -> None:
    with pytest.raises(JsonTextError) as caught:
        read_text(ONE, f'{{"x": {value}}}')

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"x": [1', "EOF while parsing a list at line 1 column 8"),
        ('{"x": {"a"', "EOF while parsing an object at line 1 column 10"),
        ('{"x": {', "EOF while parsing an object at line 1 column 7"),
        ('{"x": [1,', "EOF while parsing a value at line 1 column 9"),
        ('{"x": {"a": 1,', "EOF while parsing an object at line 1 column 14"),
        ('{"x": 1.', "invalid number at line 1 column 8"),
        ('{"x": -', "invalid number at line 1 column 7"),
        ('{"x": "a', "EOF while parsing a string at line 1 column 8"),
        ('{"x": "a\\', "EOF while parsing a string at line 1 column 9"),
    ],
)
def test_a_text_that_ends_in_such_a_member_is_refused_at_its_end(text: str, message: str) -> None:
    with pytest.raises(JsonTextError) as caught:
        read_text(ONE, text)

    assert str(caught.value) == message


def test_skipping_checks_less_than_reading() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = (
        '{"x": "\\ud800 \\n", "y": -1.5e999, "one": "a", "z": ' + deep + ', "x": [{}, {"a": [], "b": null}]}'
    )

    assert read_text(ONE, text) == {"one": "a"}
    assert ONE.accept({"one": "a", "x": object()}) == {"one": "a"}


# -- values that were read before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "missing field `cmd`"),
        ([], "invalid type: sequence, expected struct ToolEnvironmentArgs"),
        ({"cmd": 1}, "invalid type: integer `1`, expected a string in `cmd`"),
        ({"cmd": "a", "tty": 1}, "invalid type: integer `1`, expected a boolean in `tty`"),
        ({"yield_time_ms": True}, "invalid type: boolean `true`, expected u64 in `yield_time_ms`"),
        ({"prefix_rule": "git"}, 'invalid type: string "git", expected a sequence in `prefix_rule`'),
        ({"prefix_rule": ["a", None]}, "invalid type: null, expected a string in `prefix_rule`"),
        ({"cmd": "a", "nope": 1}, f"unknown field `nope`, expected {KNOWN}"),
        ({"cmd": "a", "why": "", "justification": ""}, "duplicate field `justification`"),
        ({"cmd": "\udc80"}, "invalid unicode code point in `cmd`"),
        ({1: "a"}, "key must be a string"),
        ({"cmd": b"a"}, "invalid type: bytes, expected a string in `cmd`"),
        (
            {"cmd": "a", "sandbox_permissions": "x"},
            "unknown variant `x`, expected `use_default` or `require_escalated` in `sandbox_permissions`",
        ),
        ({"sandbox_permissions": 1}, "invalid type: integer `1`, expected a string in `sandbox_permissions`"),
        ({"session_id": 10**30}, "invalid value: integer of more than 64 bits, expected i32 in `session_id`"),
    ],
)  # fmt: skip
def test_a_value_is_refused_in_the_same_words_with_its_member_for_a_place(
    value: object, message: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        ARGUMENTS.accept(value)

    assert str(caught.value) == message


def test_a_sound_value_is_accepted_as_it_is() -> None:
    value = {"cmd": "a", "workdir": None, "prefix_rule": ("a", "b"), "additional_permissions": {"x": [1]}}

    assert ARGUMENTS.accept(value) == value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1e20, "floating point `1e+20`"),
        (1e16, "floating point `1e+16`"),
        (1e15, "floating point `1000000000000000.0`"),
        (1.25e-7, "floating point `1.25e-7`"),
        (1.25e-5, "floating point `0.0000125`"),
        (-1e-5, "floating point `-0.00001`"),
        (0.0001, "floating point `0.0001`"),
        (5e-324, "floating point `5e-324`"),
        ("\u200b\xa0\xad\u3000\ue000", 'string "\\u{200b}\\u{a0}\\u{ad}\\u{3000}\\u{e000}"'),
        ("a'\x00\x7f\u0301é", 'string "a\'\\0\\u{7f}\\u{301}é"'),
        ("x" * 1001, 'string "' + "x" * 1000 + '…"'),
    ],
)
def test_values_are_shown_as_the_reference_writes_them(value: object, name: str) -> None:
    assert shown(value) == name


def test_a_reader_takes_bytes_as_well_as_text() -> None:
    assert Reader(b'["\xc3\xa9"]').value() == ["é"]
