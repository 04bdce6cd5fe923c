"""What a model reads of commands, sessions and patches: every word of it.

Rules kept in this file:

1. Texts and formatters only. Whether, when and how often a model gets them is decided elsewhere.
2. The texts are a contract: models were trained on them, and hosts search for them.
3. Output is shown as it is: escape sequences, carriage returns and a missing last newline included. Only
   bytes that are no UTF-8 become U+FFFD, and the middle of what is too long goes.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

from execclient.tools.truncation import Budget, Snapshot, count_lines, count_tokens, truncate

REJECTED_BY_USER = "rejected by user"
PATCH_REJECTED_BY_USER = "patch rejected by user"
PATCH_REJECTED_READ_ONLY = (
    "patch rejected: writing is blocked by read-only sandbox; rejected by user approval settings"
)
STDIN_CLOSED = (
    "write_stdin failed: stdin is closed for this session; "
    "rerun exec_command with tty=true to keep stdin open"
)
ADDITIONAL_PERMISSIONS_REFUSED = (
    "additional permissions are disabled; enable `features.exec_permission_approvals` before using "
    "`with_additional_permissions`"
)

_SESSION_WARNING = (
    "Warning: {count} command sessions are open, and at most {limit} can be. Finish or reuse some: above "
    "that, the one that was left alone longest is ended."
)


class Shown(NamedTuple):
    """Output as a model gets it."""

    text: str
    truncated: bool
    """Whether the budget took something, beyond what the buffer had dropped."""


# -- output


def show(output: Snapshot, budget: Budget) -> Shown:
    """The output of a session within a budget.

    What is cut is said twice: at the place, and in a first line with the number of tokens of all that the
    process produced. Its second line has the number of lines, or of the bytes that the buffer had dropped.
    """
    omission = omission_marker(output.omitted_bytes)
    text = output.text(f"\n{omission}\n")
    if not output.omitted_bytes:
        return show_text(text, budget)
    cut = _cut(text, budget)
    if cut is None:
        return Shown(text, False)
    # The budget's halves may still show the gap in the buffer; then there is no need to tell of it.
    notice = "" if omission in cut else f"{omission}\n"
    return Shown(f"{_truncation_warning(output.total_bytes)}\n{notice}\n{cut}", True)


def show_text(text: str, budget: Budget) -> Shown:
    """A text of which nothing was dropped before, likewise."""
    cut = _cut(text, budget)
    if cut is None:
        return Shown(text, False)
    warning = _truncation_warning(len(text.encode("utf-8", "replace")))
    return Shown(f"{warning}\nTotal output lines: {count_lines(text)}\n\n{cut}", True)


def omission_marker(omitted_bytes: int) -> str:
    """What stands between the two ends that a buffer kept, on a line of its own."""
    return f"... {omitted_bytes} bytes omitted ..."


def _truncation_warning(total_bytes: int) -> str:
    return f"Warning: truncated output (original token count: {count_tokens(total_bytes)})"


def _cut(text: str, budget: Budget) -> str | None:
    cut = truncate(text, budget)
    return None if cut is None else f"{cut.head}…{cut.removed} {cut.unit} truncated…{cut.tail}"


# -- envelopes


def session_envelope(
    text: str,
    *,
    wall_seconds: float,
    chunk_id: str | None = None,
    exit_code: int | None = None,
    session_id: int | str | None = None,
    output_bytes: int | None = None,
) -> str:
    """The answer of `exec_command` and of `write_stdin`.

    Args:
        text: what `show` made of the output.
        wall_seconds: how long the call took.
        chunk_id: six hexadecimal digits; None for an answer that did not come from a process.
        exit_code: of a process that has ended.
        session_id: of a process that still runs.
        output_bytes: all that the process produced since the last answer, cut or not; None for a text that
            is no output.
    """
    lines = [
        None if chunk_id is None else f"Chunk ID: {chunk_id}",
        f"Wall time: {wall_seconds:.4f} seconds",
        None if exit_code is None else f"Process exited with code {exit_code}",
        None if session_id is None else f"Process running with session ID {session_id}",
        None if output_bytes is None else f"Original token count: {count_tokens(output_bytes)}",
        "Output:",
        text,
    ]
    return "\n".join(line for line in lines if line is not None)


def command_envelope(
    text: str,
    *,
    exit_code: int,
    wall_seconds: float,
    budget: Budget,
    timed_out_after: float | None = None,
) -> Shown:
    """The answer of the tools that run a command to its end: `shell`, `shell_command` and their aliases.

    Args:
        text: all output that was kept.
        exit_code: 124 for a command that ran into its limit.
        wall_seconds: how long it ran; shown with one decimal.
        budget: what the text may take of the answer.
        timed_out_after: the limit in seconds, if that ended it.
    """
    if timed_out_after is not None:
        text = f"{timed_out(timed_out_after)}\n{text}"
    cut = _cut(text, budget)
    lines = [f"Exit code: {exit_code}", f"Wall time: {wall_seconds:.1f} seconds"]
    if cut is not None:
        lines.append(f"Total output lines: {count_lines(text)}")
    return Shown("\n".join([*lines, "Output:", text if cut is None else cut]), cut is not None)


def patch_envelope(text: str, *, wall_seconds: float, exit_code: int = 0) -> str:
    """What came of a patch. The tool that it was called through puts its own envelope around it."""
    shown = f"{wall_seconds:.1f}".removesuffix(".0")
    return f"Exit code: {exit_code}\nWall time: {shown} seconds\nOutput:\n{text}"


def timed_out(seconds: float) -> str:
    """The first line of the output of a command that ran into its limit."""
    return f"command timed out after {round(seconds * 1000)} milliseconds"


# -- calls that came to nothing


def rejected(reason: str, *, tool: str = "exec_command") -> str:
    """A command that was refused, by a rule, a sandbox's policy or somebody who was asked."""
    message = f"Rejected({quoted(reason)})"
    return f"{tool} failed: CreateProcess {{ message: {quoted(message)} }}"


def not_started(reason: str, *, tool: str = "exec_command") -> str:
    """A command that could not be started.

    Args:
        reason: the system's, as in `No such file or directory (os error 2)`.
        tool: which one it was.
    """
    return rejected(f"Failed to create unified exec process: {reason}", tool=tool)


def may_have_run(reason: str, *, tool: str) -> str:
    """A command whose start was not answered: it must not be taken for one that did not run."""
    return (
        f"{tool} failed: the command may have run, in part or to its end ({reason}). "
        "If it still ran, it was ended. Look at what it has done before you run it again."
    )


def ran_within_sandbox(text: str) -> str:
    """Before what is told of a second attempt that was not started."""
    return f"The sandbox was in the way of the command, which has run. It was to run again without it: {text}"


def lost_output(size: int, *, more: bool) -> str:
    """For a model whose command printed more than could be brought to it."""
    amount = "some" if not size else f"at least {size} bytes" if more else f"{size} bytes"
    return f"Warning: {amount} of the output were lost on the way"


def unknown_session(session_id: int | str) -> str:
    """Input for a session that is not there, or no longer."""
    return f"write_stdin failed: Unknown process id {session_id}"


def unsupported_call(name: str, *, custom: bool = False) -> str:
    """A call of a tool that is not there; `custom` for one that was called with text instead of arguments."""
    return f"unsupported {'custom tool ' if custom else ''}call: {name}"


def retry_refused(reason: str) -> str:
    """For a model whose command was not run again without the sandbox that was in its way."""
    return f"Not run again without the sandbox: {reason}"


def session_warning(count: int, limit: int) -> str:
    """For a model that leaves its sessions open."""
    return _SESSION_WARNING.format(count=count, limit=limit)


# -- quoting

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}

_EXTENDING = ("Mn", "Me")
"""Categories of characters that would change the one before them: a quote, at worst."""


def quoted(text: str) -> str:
    """A string literal as Rust's debug format writes it, which is what models see in error texts.

    What cannot be printed is written as its code, in hexadecimal digits between braces.
    """
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if escape := _ESCAPES.get(character):
        return escape
    if character.isprintable() and unicodedata.category(character) not in _EXTENDING:
        return character
    return f"\\u{{{ord(character):x}}}"
