"""The runner of the manual notices what is wrong with a page."""

from __future__ import annotations

import pytest

from tests.docs.commands import commands_of, matches
from tests.docs.conversation import same
from tests.docs.pages import ROOT, PageError, blocks_of
from tests.docs.reader import BlockFailed, reader

PAGE = ROOT / "docs" / "index.md"


def follow(text: str) -> None:
    with reader() as one:
        one.follow(blocks_of(PAGE, text))


@pytest.mark.parametrize(
    "text",
    [
        "```ruby\nputs 1\n```",
        "```python hl_lines=1\npass\n```",
        "    indented code\n",
        "```ts\nlet a = 1\n```",
        "```text\n$ rm -r /\n```",
        "<!-- elsewhere: make interop -->\n```sh\nfalse\n```",
        "<!-- skip -->\n```sh\nfalse\n```",
    ],
)
def test_nothing_is_left_out_in_silence(text: str) -> None:
    with pytest.raises(PageError, match=r"^docs/index\.md:[12]"):
        blocks_of(PAGE, text)


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ false\n```",
        "```console\n$ echo one\ntwo\n```",
        "```console\n$ false\n$ true\n```",
        "<!-- exit: 3 -->\n```console\n$ exit 4\n```",
        "```sh\nfalse\ntrue\n```",
        "```python\nraise SystemExit(1)\n```",
        "```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```",
        "```json\n{\n```",
        '```json\n{"id": 1, "method": "process/start", "params": {}}\n```',
        '```json\n{"id": 1, "method": "process/begin"}\n```',
        "```toml\nno_such_setting = 1\n```",
        "```console\n$ execserver serve --listen unix://$PWD/s\nunix:///somewhere/else\n```",
        "```console\n$ execserver serve --listen tcp://nowhere\n```",
        "```console\n$ execserver relay serve --listen http://127.0.0.1:8470 --state-dir r\nhttp://other\n```",
        "```console\n$ execserver relay serve --listen ws://127.0.0.1:8470 --state-dir r\n```",
        (
            "```console\n$ execserver serve --listen stdio\n```\n"
            '```json\n{"id":1,"method":"rpc.discover"}\n{"id":1,"result":{}}\n```'
        ),
        "<!-- elsewhere: make interop: no reason -->\n```console\n$ if then\n```",
    ],
)
def test_a_block_that_does_something_else_fails(text: str) -> None:
    with pytest.raises((AssertionError, BlockFailed)):
        follow(text)


def test_a_page_may_start_a_daemon_and_talk_to_it_in_the_next_block() -> None:
    follow(
        "```console\n$ execserver serve\nunix:///run/user/1000/execserver/execserver.sock\n```\n"
        "```python\nimport asyncio, execclient\n\n"
        "async def main():\n    async with execclient.connect() as executor:\n"
        "        print((await executor.run(['echo', 'hello'])).text)\n\nasyncio.run(main())\n```\n"
        "<!-- output -->\n```text\nhello\n```\n"
    )


@pytest.mark.parametrize(
    ("command", "is_daemon", "is_remote"),
    [
        ("execserver serve", True, False),
        ("execserver serve --remote-key-file k", True, False),
        ("TOKEN=x execserver serve --remote http://127.0.0.1:8470", True, True),
        ("execserver relay serve --listen http://127.0.0.1:8470 --state-dir relay", True, False),
        ("execserver relay serve --help", False, False),
        ("execserver relay key serve", False, False),
        ("execserver run --remote", False, False),
    ],
)
def test_what_goes_on_is_told_from_what_ends(command: str, is_daemon: bool, is_remote: bool) -> None:
    (found,) = commands_of(f"$ {command}")
    assert (found.is_daemon, found.is_remote) == (is_daemon, is_remote)


def test_a_page_that_leaves_something_running_fails() -> None:
    with pytest.raises(AssertionError, match="leaves behind"):
        follow("```console\n$ setsid sleep 1000 > /dev/null 2>&1 & disown; true\n```")


def test_commands_have_continuations_documents_and_output() -> None:
    text = "$ one \\\n    more\n$ cat <<'END'\n$ no prompt\nEND\nprinted\n$ last   # a remark\n"
    commands = commands_of(text)
    assert [command.text for command in commands] == [
        "one \\\n    more",
        "cat <<'END'\n$ no prompt\nEND",
        "last",
    ]
    assert [command.expected for command in commands] == [[], ["printed"], []]


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        ("a … c", "a b c\n", True),
        ("a … c", "a b d\n", False),
        ("first\n…\nlast", "first\nlast\n", True),
        ("first\n…\nlast", "first\n1\n2\nlast\n", True),
        ("first\n…\nlast", "first\n1\n", False),
        ("first", "first\nsecond\n", False),
    ],
)
def test_an_ellipsis_stands_for_what_changes(expected: str, actual: str, equal: bool) -> None:
    assert matches(expected, actual) is equal


def test_an_ellipsis_in_a_message_stands_for_a_value_or_for_more_members() -> None:
    assert same(
        {"id": 1, "result": {"sessionId": "…", "…": "…"}}, {"id": 1, "result": {"sessionId": "x", "more": 2}}
    )
    assert not same(
        {"id": 1, "result": {"sessionId": "…"}}, {"id": 1, "result": {"sessionId": "x", "more": 2}}
    )
    assert not same({"code": 3}, {"code": 3.0})
    assert same({"text": "No … (os error 2)"}, {"text": "No such file (os error 2)"})
