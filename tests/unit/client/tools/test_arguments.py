from __future__ import annotations

import pytest
from pydantic import ValidationError

from execclient.tools.arguments import (
    Arguments,
    ExecCommandArguments,
    RunShellCommandArguments,
    ShellArguments,
    ShellCommandArguments,
    WriteStdinArguments,
    parse,
    shape_of,
)
from execclient.tools.errors import ArgumentError, RespondToModel
from execclient.tools.json_shapes import Nullable

MODELS: tuple[type[Arguments], ...] = (
    ShellArguments,
    ShellCommandArguments,
    ExecCommandArguments,
    WriteStdinArguments,
    RunShellCommandArguments,
)


def refusal(model: type[Arguments], arguments: str | dict[str, object]) -> str:
    with pytest.raises(ArgumentError) as caught:
        parse(model, arguments)
    assert str(caught.value) == f"failed to parse function arguments: {caught.value.reason}"
    return caught.value.reason


# -- the reference's own cases


BOGUS = (
    "unknown variant `bogus`, expected one of `use_default`, `require_escalated`,"
    " `with_additional_permissions` at line 1 column 44"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "missing field `cmd` at line 1 column 2"),
        ("notjson", "expected ident at line 1 column 2"),
        ('{"cmd": "ls", "sandbox_permissions": "bogus"}', BOGUS),
        ("", "EOF while parsing a value at line 1 column 0"),
        (" []", "invalid length 0, expected struct ToolEnvironmentArgs with 1 element at line 1 column 3"),
        ("null", "invalid type: null, expected struct ToolEnvironmentArgs at line 1 column 4"),
        ('"ls"', 'invalid type: string "ls", expected struct ToolEnvironmentArgs at line 1 column 4'),
        ('{"cmd": null}', "invalid type: null, expected a string at line 1 column 12"),
        ('{"cmd":"true","tty":null}', "invalid type: null, expected a boolean at line 1 column 24"),
        (
            '{"cmd":"true","yield_time_ms":-1}',
            "invalid value: integer `-1`, expected u64 at line 1 column 32",
        ),
        (
            '{"cmd":"true","yield_time_ms":1e20}',
            "invalid type: floating point `1e+20`, expected u64 at line 1 column 34",
        ),
        (
            '{"cmd":"true","yield_time_ms":-0}',
            "invalid type: floating point `-0.0`, expected u64 at line 1 column 32",
        ),
        (
            '{"cmd":"true","max_output_tokens":-1}',
            "invalid value: integer `-1`, expected usize at line 1 column 36",
        ),
        ('{"cmd":"true","sandbox_permissions":5}', "expected value at line 1 column 37"),
        (
            '{"cmd":"true","prefix_rule":"git"}',
            'invalid type: string "git", expected a sequence at line 1 column 33',
        ),
        (
            '{"cmd":"true","environment_id":5}',
            "invalid type: integer `5`, expected a string at line 1 column 32",
        ),
        ('{"cmd":"true","cmd":"false"}', "duplicate field `cmd` at line 1 column 19"),
        ('{"cmd":"true"} x', "trailing characters at line 1 column 16"),
        ('{"cmd":"true",}', "trailing comma at line 1 column 15"),
        ('{"cmd":"\\u00g0"}', "invalid escape at line 1 column 14"),
        (
            '{"cmd":"a\tb"}',
            "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 9",
        ),
    ],
)
def test_exec_command_answers_as_the_reference_does(text: str, reason: str) -> None:
    assert refusal(ExecCommandArguments, text) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "missing field `session_id` at line 1 column 2"),
        ("[]", "invalid length 0, expected struct TerminalSessionArgs with 1 element at line 1 column 2"),
        ('{"session_id":"1"}', 'invalid type: string "1", expected i32 at line 1 column 17'),
        (
            '{"session_id":99999999999}',
            "invalid value: integer `99999999999`, expected i32 at line 1 column 25",
        ),
        ('{"session_id":1.5}', "invalid type: floating point `1.5`, expected i32 at line 1 column 17"),
        ('{"session_id":17628,"chars":null}', "invalid type: null, expected a string at line 1 column 32"),
        (
            '{"session_id":17628,"yield_time_ms":null}',
            "invalid type: null, expected u64 at line 1 column 40",
        ),
    ],
)
def test_write_stdin_answers_as_the_reference_does(text: str, reason: str) -> None:
    assert refusal(WriteStdinArguments, text) == reason


def test_what_is_wrong_with_the_text_comes_before_what_is_wrong_with_its_members() -> None:
    assert refusal(ExecCommandArguments, '{"cmd": 1, "nope": [1 2]}') == (
        "expected `,` or `]` at line 1 column 23"
    )
    assert refusal(ExecCommandArguments, '{"nope": 1} x') == "trailing characters at line 1 column 13"
    assert refusal(WriteStdinArguments, '{"chars": 1, "session_id": "a"}') == (
        'invalid type: string "a", expected i32 at line 1 column 30'
    )
    assert refusal(ShellArguments, '{"command": 1, }').startswith("invalid type: integer `1`")


@pytest.mark.parametrize("name", ["login", "shell", "justification", "sandbox_permissions", "environment_id"])
def test_exec_command_takes_null_where_the_reference_does(name: str) -> None:
    assert parse(ExecCommandArguments, {"cmd": "ls", name: None}) == ExecCommandArguments(cmd="ls")


def test_an_argument_error_is_one_for_the_model() -> None:
    assert issubclass(ArgumentError, RespondToModel)


# -- all of them


@pytest.mark.parametrize("model", MODELS)
def test_a_member_that_is_not_known_is_refused_by_name_and_the_known_ones_are_told(
    model: type[Arguments],
) -> None:
    session = ', "session_id": 1000' if model is WriteStdinArguments else ""

    reason = refusal(model, f'{{"sandbox_permission": "require_escalated"{session}}}')

    assert reason.startswith("unknown field `sandbox_permission`, expected ")
    assert reason.endswith(" at line 1 column 21")
    for member in shape_of(model).members:
        assert (f"`{member.name}`" in reason) == member.advertised


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_command_is_named(model: type[Arguments]) -> None:
    needed = next(member.name for member in shape_of(model).members if member.required)

    assert refusal(model, "{}") == f"missing field `{needed}` at line 1 column 2"
    assert refusal(model, {}) == f"missing field `{needed}`"


@pytest.mark.parametrize("model", MODELS)
def test_null_stands_for_absence_where_it_is_allowed(model: type[Arguments]) -> None:
    members = shape_of(model).members
    needed: dict[str, object] = {"command": "ls", "cmd": "ls", "session_id": 1000}
    given = {member.name: needed[member.name] for member in members if member.required}
    if model is ShellArguments:
        given = {"command": ["ls"]}
    nulls = dict.fromkeys(member.name for member in members if isinstance(member.shape, Nullable))

    assert parse(model, {**given, **nulls}) == parse(model, given)


def test_arguments_do_not_change() -> None:
    arguments = parse(ShellCommandArguments, '{"command": "ls"}')

    with pytest.raises(ValidationError):
        setattr(arguments, "command", "rm")  # noqa: B010  (the type checker refuses it, too)


# -- shell


def test_shell_has_its_defaults() -> None:
    arguments = parse(ShellArguments, '{"command": ["ls", "-la"], "workdir": "src"}')

    assert arguments.command == ("ls", "-la")
    assert arguments.workdir == "src"
    assert arguments.timeout_ms is None
    assert arguments.sandbox_permissions == "use_default"
    assert (arguments.justification, arguments.prefix_rule) == (None, None)


def test_the_words_of_a_command_stay_as_they_are() -> None:
    words = ("printf", "", "a b", "$HOME", "new\nline", "'quoted\"", "é", "*")

    assert parse(ShellArguments, {"command": list(words)}).command == words


@pytest.mark.parametrize("command", [[], [""], ["", "x"]])
def test_a_command_without_a_program_is_refused(command: list[str]) -> None:
    reason = "`command` is empty: its first word must be the program to run"

    assert refusal(ShellArguments, {"command": command}) == reason
    assert refusal(ExecCommandArguments, {"command": command}) == reason


def test_the_time_limit_has_a_short_name_too() -> None:
    assert parse(ShellArguments, '{"command": ["ls"], "timeout": 5000}').timeout_ms == 5000
    assert "duplicate field `timeout_ms`" in refusal(
        ShellArguments, '{"command": ["ls"], "timeout": 1, "timeout_ms": 1}'
    )
    assert "invalid value: integer `-1`, expected u64" in refusal(
        ShellCommandArguments, '{"command": "ls", "timeout_ms": -1}'
    )


def test_a_request_for_escalation_comes_with_its_reason_and_rule() -> None:
    arguments = parse(
        ShellArguments,
        '{"command": ["git", "pull"], "sandbox_permissions": "require_escalated",'
        ' "justification": "Fetch?", "prefix_rule": ["git", "pull"]}',
    )

    assert arguments.sandbox_permissions == "require_escalated"
    assert arguments.justification == "Fetch?"
    assert arguments.prefix_rule == ("git", "pull")


# -- shell_command


def test_shell_command_takes_a_script_for_a_login_shell() -> None:
    arguments = parse(ShellCommandArguments, '{"command": "grep -r \'TODO\' src/", "timeout_ms": 5000}')

    assert arguments.command == "grep -r 'TODO' src/"
    assert arguments.login is True
    assert arguments.timeout_ms == 5000
    assert parse(ShellCommandArguments, '{"command": "ls", "login": false}').login is False


def test_shell_and_shell_command_do_not_take_each_others_command() -> None:
    assert "expected a sequence" in refusal(ShellArguments, '{"command": "ls"}')
    assert "expected a string" in refusal(ShellCommandArguments, '{"command": ["ls"]}')


# -- exec_command


def test_exec_command_takes_a_script() -> None:
    arguments = parse(ExecCommandArguments, '{"cmd": "ls", "max_output_tokens": 100, "shell": "/bin/zsh"}')

    assert (arguments.script, arguments.argv, arguments.process_id) == ("ls", None, None)
    assert (arguments.login, arguments.tty, arguments.yield_time_ms) == (True, False, 10_000)
    assert (arguments.max_output_tokens, arguments.shell) == (100, "/bin/zsh")


def test_exec_command_takes_a_program_and_a_name_for_the_process() -> None:
    arguments = parse(
        ExecCommandArguments,
        '{"command": ["bash", "-i"], "process_id": "1001", "yield_time_ms": 2500, "tty": true}',
    )

    assert (arguments.script, arguments.argv) == (None, ("bash", "-i"))
    assert (arguments.process_id, arguments.yield_time_ms, arguments.tty) == ("1001", 2500, True)


def test_exec_command_takes_one_form_at_a_time() -> None:
    assert "give one of them" in refusal(ExecCommandArguments, '{"cmd": "ls", "command": ["ls"]}')
    for name, value in (("shell", "sh"), ("login", False)):
        reason = refusal(ExecCommandArguments, {"command": ["ls"], name: value})
        assert reason == f"`{name}` belongs to `cmd`: `command` is run as it is, without a shell"


def test_an_empty_script_is_one_that_does_nothing() -> None:
    assert parse(ExecCommandArguments, '{"cmd": ""}').script == ""


def test_an_empty_workdir_is_none() -> None:
    assert parse(ExecCommandArguments, '{"cmd": "ls", "workdir": ""}').workdir is None


def test_unused_permissions_are_understood() -> None:
    arguments = parse(
        ExecCommandArguments,
        '{"cmd": "ls", "sandbox_permissions": "with_additional_permissions",'
        ' "additional_permissions": {"network": {"enabled": true}}}',
    )

    assert arguments.sandbox_permissions == "with_additional_permissions"
    assert arguments.additional_permissions == {"network": {"enabled": True}}


def test_a_model_made_by_hand_is_held_to_the_same_rules() -> None:
    assert ExecCommandArguments(cmd="ls").yield_time_ms == 10_000
    with pytest.raises(ValidationError, match="missing field `cmd`"):
        ExecCommandArguments()
    with pytest.raises(ValidationError, match="missing field `session_id`"):
        WriteStdinArguments(chars="x")


# -- write_stdin


def test_write_stdin_takes_a_session_by_number_or_by_name() -> None:
    by_number = parse(WriteStdinArguments, '{"session_id": 1234, "chars": "ls\\n"}')
    by_name = parse(WriteStdinArguments, '{"process_id": "1234", "input": "ls\\n", "yield_time_ms": 1000}')

    assert (by_number.session, by_number.data, by_number.yield_time_ms) == ("1234", "ls\n", 250)
    assert (by_name.session, by_name.data, by_name.yield_time_ms) == ("1234", "ls\n", 1000)


def test_write_stdin_without_input_only_looks() -> None:
    assert parse(WriteStdinArguments, '{"session_id": 1000}').data == ""


def test_write_stdin_takes_one_session() -> None:
    assert "give one of them" in refusal(WriteStdinArguments, '{"session_id": 1, "process_id": "1"}')
    assert "duplicate field `chars`" in refusal(
        WriteStdinArguments, '{"session_id": 1, "chars": "", "input": ""}'
    )
    assert 'invalid type: string "1", expected i32' in refusal(WriteStdinArguments, '{"session_id": "1"}')


# -- run_shell_command


def test_run_shell_command_takes_two_minutes_by_default() -> None:
    assert parse(RunShellCommandArguments, '{"cmd": "make"}').timeout == 120
    assert parse(RunShellCommandArguments, '{"cmd": "make", "timeout": 10000}').timeout == 10_000


@pytest.mark.parametrize("timeout", ["0", "-5", "1.5", '"60"'])
def test_a_time_limit_that_is_none_is_refused(timeout: str) -> None:
    reason = refusal(RunShellCommandArguments, f'{{"cmd": "make", "timeout": {timeout}}}')

    assert "expected a whole number of seconds, 1 or more at line 1 column" in reason
