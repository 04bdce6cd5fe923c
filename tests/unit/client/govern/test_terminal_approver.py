from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import pty
import resource
import select
import tty
from collections.abc import Iterator
from typing import TextIO

import pytest

from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    CANCEL,
    DECLINE,
    ApprovalRequest,
    Approvals,
    Review,
)
from execclient.govern.network import NetworkTarget
from execclient.govern.policy.rules import NetworkRule
from execclient.govern.terminal_approver import TerminalApprover, visible

REQUEST = ApprovalRequest(
    call_id="c1",
    kind="command",
    command="git push --force",
    argv=("git", "push", "--force"),
    cwd="/srv/work",
    reason="the branch was rebased",
    amendment=("git", "push"),
    permits=("read everything", "still denied: reading **/.env"),
    retry=False,
    tool="exec_command",
    prompt="May it?",
)
PATCH = dataclasses.replace(
    REQUEST,
    kind="patch",
    command="",
    argv=(),
    amendment=None,
    paths=("/srv/work/a.txt", "/etc/x\u202e"),
    diff="--- a.txt\n+++ a.txt\n-old\x1b[2K\n+new\n",
    prompt="",
)
NETWORK = dataclasses.replace(
    REQUEST,
    kind="network",
    command="pip install x\x1b]0;y\x07",
    amendment=None,
    permits=("connect to pypi.org:443 (https)",),
    prompt="",
    network=NetworkTarget("pypi.org", 443, "https"),
    rule=NetworkRule("pypi.org", "https", "allow", port=443),
)


async def review(typed: str, request: ApprovalRequest = REQUEST) -> tuple[Review | None, str]:
    """The answer to what was typed, and all that was shown."""
    output = io.StringIO()
    answer = await TerminalApprover(io.StringIO(typed), output).review(request)
    return answer, output.getvalue()


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y\n", ACCEPT),
        (" yes \n", ACCEPT),
        ("n\n", DECLINE),
        ("no, never\n", None),
        ("n use a branch of its own\n", Review("denied", "use a branch of its own")),
        ("a\n", ACCEPT_FOR_SESSION),
        ("p\n", Review("approved_with_amendment", amendment=("git", "push"))),
        ("q\n", CANCEL),
        ("", CANCEL),
        ("y", ACCEPT),
    ],
)
async def test_each_answer_has_its_letter(typed: str, answer: Review | None) -> None:
    given, _ = await review(typed)

    # What is no answer is asked again, and then there is no more input.
    assert given == (CANCEL if answer is None else answer)


async def test_anything_else_is_asked_again() -> None:
    answer, shown = await review("\nok\nyy\ny please\nY\ny\n")

    assert answer == ACCEPT
    assert shown.count("That is none of the answers.") == 5
    assert shown.count("> ") == 6


async def test_a_rule_is_no_answer_unless_one_is_proposed() -> None:
    answer, shown = await review("p\nn\n", dataclasses.replace(REQUEST, amendment=None))

    assert answer == DECLINE
    assert "always" not in shown
    assert "none of the answers" in shown


async def test_the_question_shows_all_that_the_answer_is_about() -> None:
    _, shown = await review("n\n")

    assert shown.splitlines()[:7] == [
        "",
        "May it?",
        "  | $ git push --force",
        "  folder:  /srv/work",
        "  reason:  the branch was rebased",
        "  permits: read everything",
        "  permits: still denied: reading **/.env",
    ]
    assert "p: yes, and always what begins with git push" in shown


async def test_a_second_run_is_announced() -> None:
    _, shown = await review("n\n", dataclasses.replace(REQUEST, retry=True))

    assert "It would run a second time." in shown


async def test_a_patch_is_shown_with_its_files_and_its_diff() -> None:
    _, shown = await review("n\n", PATCH)

    assert "The model asks to change files." in shown
    assert "  file:    /srv/work/a.txt\n  file:    /etc/x\\u202e\n" in shown
    assert "  | -old\\x1b[2K\n  | +new\n" in shown


async def test_a_command_cannot_pass_for_a_question_of_its_own() -> None:
    command = "cat <<E\nfolder:  /tmp\nE\r\x1b[A\x1b[2Krm -rf /\u202e\u200b\u2028x"

    _, shown = await review(
        "n\n", dataclasses.replace(REQUEST, command=command, cwd="/w\n> y", reason="\x9b1m")
    )

    assert shown.splitlines()[2:7] == [
        "  | $ cat <<E",
        "  |   folder:  /tmp",
        "  |   E\\r\\x1b[A\\x1b[2Krm -rf /\\u202e\\u200b\\u2028x",
        "  folder:  /w\\n> y",
        "  reason:  \\x9b1m",
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        "\0",
        "\t",
        "\x7f",
        "\x9b",
        "\u00a0",
        "\u00ad",
        "\u200d",
        "\u2066",
        "\u3164",
        "\ufe0f",
        "\ufeff",
        "\U000e0041",
    ],
)
def test_what_cannot_be_seen_is_shown_by_its_number(hidden: str) -> None:
    shown = visible(f"a{hidden}b")

    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isascii()


def test_what_can_be_seen_stays() -> None:
    assert visible("grüße 漢字 é $HOME \\n 🙂") == "grüße 漢字 é $HOME \\n 🙂"


def test_blanks_that_push_the_rest_out_of_sight_are_shown_by_their_number() -> None:
    assert visible("ls" + " " * 5000 + "; rm x") == "ls [5000 blanks] ; rm x"
    assert visible("ls" + " " * 40 + "x") == "ls" + " " * 40 + "x"


def test_accents_that_paint_over_the_text_are_shown_by_their_number() -> None:
    assert visible("r\u0336\u0335\u0334\u0338m") == "r[4 marks]m"
    assert visible("ệ\u0323\u0302") == "ệ\u0323\u0302"


async def test_empty_lines_that_push_the_rest_out_of_sight_are_shown_by_their_number() -> None:
    command = "ls" + "\n" * 500 + "rm x\n\nls"

    _, shown = await review("y\n", dataclasses.replace(REQUEST, command=command))

    assert "  | $ ls\n  : 499 empty lines\n  |   rm x\n  |   \n  |   ls\n" in shown


@pytest.mark.parametrize("command", ["x" * 2001, "x\n" * 21])
async def test_a_command_that_fills_the_window_says_so_below(command: str) -> None:
    _, shown = await review("y\n", dataclasses.replace(REQUEST, command=command))
    _, usual = await review("y\n")

    assert f"  length:  {len(command)} characters in " in shown
    assert "length:" not in usual


async def test_a_terminal_without_the_letters_still_gets_the_question() -> None:
    raw = io.BytesIO()
    output = io.TextIOWrapper(raw, encoding="ascii")

    await TerminalApprover(io.StringIO("n\n"), output).review(dataclasses.replace(REQUEST, command="echo 漢"))

    assert rb"echo \u6f22" in raw.getvalue()


async def test_one_question_at_a_time() -> None:
    output = io.StringIO()
    approver = TerminalApprover(io.StringIO("y\nn\na\n"), output)

    reviews = await asyncio.gather(*(approver.review(REQUEST) for _ in range(3)))

    assert reviews == [ACCEPT, DECLINE, ACCEPT_FOR_SESSION]
    assert output.getvalue().count("> ") == 3


async def test_a_stream_that_cannot_be_read_denies() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:  # for writing only
        approvals = Approvals(user=TerminalApprover(stream, io.StringIO()), policy=ON_REQUEST)
        reviewed = await approvals.ask(REQUEST, ())

    assert (reviewed.review.answer, reviewed.review.reason) == (
        "denied",
        "TerminalApprover could not decide: UnsupportedOperation",
    )


# -- streams that keep one waiting


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, int]]:
    """A stream, and the descriptor by which to type into it."""
    reading, writing = os.pipe()
    with open(reading) as stream:
        yield stream, writing
        os.close(writing)


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """The same with a terminal."""
    typing, descriptor = pty.openpty()
    with open(descriptor) as stream:
        yield stream, typing
        os.close(typing)


@pytest.fixture
def above_a_thousand_descriptors() -> Iterator[None]:
    """What a test opens has numbers that select(2) does not take."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    descriptors = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(1100)]
    yield
    for descriptor in descriptors:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Shown(io.StringIO):
    """Output that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = asyncio.Event()

    def flush(self) -> None:
        super().flush()
        if self.getvalue().endswith("> "):
            self.flushed.set()


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
async def test_the_loop_runs_on_while_the_person_thinks(kind: str, request: pytest.FixtureRequest) -> None:
    stream, typing = request.getfixturevalue(kind)
    output = Shown()
    asking = asyncio.create_task(TerminalApprover(stream, output).review(REQUEST))
    await output.flushed.wait()

    os.write(typing, b"y\n")

    assert await asyncio.wait_for(asking, 5) == ACCEPT


@pytest.mark.usefixtures("above_a_thousand_descriptors", "terminal")
async def test_a_host_with_more_than_a_thousand_descriptors_may_ask(
    request: pytest.FixtureRequest,
) -> None:
    await test_the_loop_runs_on_while_the_person_thinks("terminal", request)


async def test_what_was_typed_before_a_question_does_not_answer_it(terminal: tuple[TextIO, int]) -> None:
    stream, typing = terminal
    os.write(typing, b"y\n")
    assert select.select([stream], [], [], 5)[0]
    output = Shown()
    asking = asyncio.create_task(TerminalApprover(stream, output).review(REQUEST))
    await output.flushed.wait()

    os.write(typing, b"n\n")

    assert await asyncio.wait_for(asking, 5) == DECLINE


async def test_a_question_that_is_withdrawn_takes_no_input_of_a_terminal(
    terminal: tuple[TextIO, int],
) -> None:
    stream, typing = terminal
    output = Shown()
    asking = asyncio.create_task(TerminalApprover(stream, output).review(REQUEST))
    await output.flushed.wait()

    asking.cancel()
    await asyncio.wait({asking})
    os.write(typing, b"for the host\n")

    assert await asyncio.wait_for(asyncio.to_thread(stream.readline), 5) == "for the host\n"


async def test_after_a_question_was_withdrawn_the_next_one_gets_its_own_answer(
    pipe: tuple[TextIO, int],
) -> None:
    stream, typing = pipe
    output = Shown()
    approver = TerminalApprover(stream, output)
    first = asyncio.create_task(approver.review(REQUEST))
    await output.flushed.wait()
    first.cancel()
    await asyncio.wait({first})

    output.flushed.clear()
    second = asyncio.create_task(approver.review(REQUEST))
    await output.flushed.wait()
    os.write(typing, b"n\n")

    assert await asyncio.wait_for(second, 5) == DECLINE


async def test_a_closed_terminal_ends_the_turn() -> None:
    typing, descriptor = pty.openpty()
    tty.setraw(descriptor)
    output = Shown()
    with open(descriptor) as stream:
        asking = asyncio.create_task(
            Approvals(user=TerminalApprover(stream, output), policy=ON_REQUEST).ask(REQUEST, ())
        )
        await output.flushed.wait()
        os.close(typing)
        reviewed = await asyncio.wait_for(asking, 5)

    assert not reviewed.review.approves


async def test_a_question_about_a_host_shows_the_host_and_the_command_that_asks() -> None:
    answer, shown = await review("y\n", NETWORK)

    assert answer == ACCEPT
    assert shown == (
        "\nA running command asks for a host on the network.\n"
        "  host:     pypi.org\n"
        "  port:     443\n"
        "  protocol: https\n"
        "  | $ pip install x\\x1b]0;y\\x07\n"
        "  folder:  /srv/work\n"
        "  reason:  the branch was rebased\n"
        "  permits: connect to pypi.org:443 (https)\n"
        "y: yes, for this command; n [WHY]: no; a: yes, for the whole session; "
        "p: yes, and always https to pypi.org:443; q: end the turn\n> "
    )


async def test_a_rule_on_a_host_is_approved_where_it_is_proposed_and_nowhere_else() -> None:
    answer, _ = await review("p\n", NETWORK)
    assert answer == Review("approved_with_amendment", rule=NETWORK.rule)

    answer, shown = await review("p\nn\n", dataclasses.replace(NETWORK, rule=None))
    assert answer == DECLINE
    assert "p: yes, and always" not in shown


async def test_a_host_cannot_draw_on_the_terminal() -> None:
    hostile = NetworkTarget("a\x1b[2K\u202e.example\r  host:     pypi.org", 443, "https")

    _, shown = await review("n\n", dataclasses.replace(NETWORK, network=hostile, rule=None))

    assert "  host:     a\\x1b[2K\\u202e.example\\r  host:     pypi.org\n" in shown
    assert not {"\x1b", "\u202e", "\r"} & set(shown)
