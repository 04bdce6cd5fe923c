"""Environment policy: how a child's variables are made from the daemon's."""

from __future__ import annotations

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import Client, Json

NEVER = {
    "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE": "1",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": "1",
    "OPENAI_IDENTITY_TOKEN_FILE": "1",
    "OPENAI_FEDERATION_RULE_ID": "1",
}
NEVER_OURS = {
    "NOTIFY_SOCKET": "/nowhere",
    "JOURNAL_STREAM": "1:2",
    "CREDENTIALS_DIRECTORY": "/nowhere",
    "LISTEN_FDNAMES": "x",
    "WATCHDOG_USEC": "1",
    "EXECSERVER_ANYTHING": "1",
}


def inherited_of(environment: dict[str, str]) -> dict[str, str]:
    """What is left of the daemon's own variables when everything is inherited."""
    return {name: value for name, value in environment.items() if not name.startswith("EXECSERVER_")}


def policy(**changes: Json) -> dict[str, Json]:
    return {
        "inherit": "all",
        "ignoreDefaultExcludes": True,
        "exclude": [],
        "set": {},
        "includeOnly": [],
        **changes,
    }


def variables(client: Client, env: dict[str, str], env_policy: Json = None) -> dict[str, str]:
    process = client.start("/usr/bin/env", "-0", env=env, envPolicy=env_policy).wait_closed()
    assert process.exit_code == 0
    pairs = process.output.decode().split("\0")[:-1]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@pytest.mark.statement("V1")
@pytest.mark.parametrize("env", [{}, {"A": "1"}, {"PATH": "/x", "EMPTY": "", "LONG": "ü" * 5000}])
def test_without_a_policy_the_environment_is_exact(client: Client, env: dict[str, str]) -> None:
    assert variables(client, env) == env


@pytest.mark.everywhere
@pytest.mark.statement("V2", "V7", "V12")
def test_all(client: Client, environment: dict[str, str]) -> None:
    assert variables(client, {"A": "1"}, policy()) == inherited_of(environment) | {"A": "1"}


@pytest.mark.statement("V2")
def test_core(client: Client, environment: dict[str, str]) -> None:
    core = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER")
    expected = {name: environment[name] for name in core}
    assert variables(client, {}, policy(inherit="core")) == expected


@pytest.mark.statement("V2")
def test_core_names_that_are_rarer(endpoint: Endpoint, environment: dict[str, str]) -> None:
    rarer = {"LC_ALL": "C", "TMP": "/tmp", "TEMP": "/tmp"}
    client = endpoint.private(env=rarer | {"TERM": "dumb", "EDITOR": "vi"}).connect()
    inherited = variables(client, {}, policy(inherit="core"))
    assert rarer.items() <= inherited.items()
    assert not {"TERM", "EDITOR"} & set(inherited)


@pytest.mark.statement("V2")
def test_none(client: Client) -> None:
    assert variables(client, {"A": "1"}, policy(inherit="none")) == {"A": "1"}


@pytest.mark.statement("V3", "V7", "V8")
def test_names_that_look_secret_go(client: Client, environment: dict[str, str]) -> None:
    inherited = variables(client, {"MY_TOKEN": "laid over"}, policy(ignoreDefaultExcludes=False))
    gone = {"SOME_TOKEN", "API_KEY_FILE", "A_SECRET_THING", "monkey"}
    expected = {name: value for name, value in inherited_of(environment).items() if name not in gone}
    assert inherited == expected | {"MY_TOKEN": "laid over"}


@pytest.mark.statement("V3", "V5")
def test_set_is_not_filtered_by_the_default_names(client: Client) -> None:
    made = variables(client, {}, policy(inherit="none", ignoreDefaultExcludes=False, set={"NEW_KEY": "k"}))
    assert made == {"NEW_KEY": "k"}


@pytest.mark.statement("V4", "V8")
def test_exclude(client: Client, environment: dict[str, str]) -> None:
    inherited = variables(client, {}, policy(exclude=["plain_*", "LAN?", "?SER", "NOTHING"]))
    assert not {"PLAIN_ONE", "PLAIN_TWO", "LANG", "USER"} & set(inherited)
    assert inherited["HOME"] == environment["HOME"]


@pytest.mark.statement("V8")
@pytest.mark.parametrize("pattern", ["PLAIN", "LAIN_ONE", "PLAIN_ON", "[P]LAIN_ONE", "P.*", "PLAIN_ONE ", ""])
def test_pattern_must_match_the_whole_name_and_has_two_wildcards(client: Client, pattern: str) -> None:
    assert "PLAIN_ONE" in variables(client, {}, policy(exclude=[pattern]))


@pytest.mark.statement("V4", "V5", "V7")
def test_set_comes_after_exclude_and_env_after_set(client: Client) -> None:
    made = variables(
        client,
        {"Y": "env", "Z": "z"},
        policy(inherit="none", exclude=["X", "Z"], set={"X": "1", "Y": "2"}),
    )
    assert made == {"X": "1", "Y": "env", "Z": "z"}


@pytest.mark.statement("V6", "V7")
def test_include_only_filters_set_and_not_env(client: Client) -> None:
    made = variables(client, {"E": "e"}, policy(includeOnly=["plain_o*", "t"], set={"S": "1", "T": "2"}))
    assert made == {"PLAIN_ONE": "plain", "T": "2", "E": "e"}


@pytest.mark.statement("V9")
def test_secrets_of_the_executor_never_reach_a_child(client: Client) -> None:
    assert variables(client, NEVER | {"A": "1"}) == {"A": "1"}
    assert variables(client, NEVER, policy(inherit="none", set=NEVER | {"B": "2"})) == {"B": "2"}


@pytest.mark.statement("V10")
def test_names_of_the_service_never_reach_a_child(client: Client) -> None:
    assert variables(client, NEVER_OURS | {"A": "1"}) == {"A": "1"}
    assert variables(client, NEVER_OURS, policy(inherit="none", set=NEVER_OURS)) == {}


@pytest.mark.statement("V8")
@pytest.mark.parametrize("member", ["exclude", "includeOnly"])
@pytest.mark.parametrize("patterns", [["*a" * 2048], ["*ab"] * 1025, [""] * 4097, ["?" * 65536]])
def test_patterns_that_take_long_to_compile_are_refused(
    client: Client, member: str, patterns: list[str]
) -> None:
    params = client.start_params(["/bin/true"], envPolicy=policy(**{member: patterns}))
    failure = client.refused("process/start", params)
    assert failure.code == -32602
    assert failure.message.startswith(f"the patterns of envPolicy.{member} have more than 4096 characters")
    assert variables(client, {}, policy(inherit="none", **{member: ["*ab"] * 1024})) == {}


@pytest.mark.statement("V9", "V10")
def test_inherited_secrets_never_reach_a_child(endpoint: Endpoint) -> None:
    client = endpoint.private(env=NEVER | {"JOURNAL_STREAM": "1:2", "HARMLESS": "1"}).connect()
    inherited = variables(client, {}, policy())
    assert inherited["HARMLESS"] == "1"
    assert not (set(NEVER) | {"JOURNAL_STREAM"}) & set(inherited)


@pytest.mark.statement("V9", "V1")
def test_terminals_are_filtered_too(client: Client) -> None:
    process = client.start("/usr/bin/env", env=NEVER | {"SHELL": "/bin/sh"}, tty=True).wait_closed()
    assert process.output == b"SHELL=/bin/sh\r\n"


@pytest.mark.statement("V11", "E11")
def test_policy_that_does_not_decode(client: Client) -> None:
    whole = policy()
    wrong: list[dict[str, Json]] = [
        *({other: value for other, value in whole.items() if other != name} for name in whole),
        whole | {"inherit": "some"},
        whole | {"exclude": "A"},
        whole | {"set": {"A": 1}},
    ]
    for value in wrong:
        assert client.refused("process/start", client.start_params(["x"], envPolicy=value)).code == -32602
