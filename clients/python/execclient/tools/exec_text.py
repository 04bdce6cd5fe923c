"""All texts for models about commands, sessions and patches.

Rules kept in this file:

1. Texts and formatters only. Other modules decide when a model gets them.
2. The texts are a contract: models were trained on them, and hosts search for them.
3. Output is shown unchanged, with escape sequences, carriage returns and a missing last newline. Only invalid
   UTF-8 becomes U+FFFD, and output that is too long loses its middle.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
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


DENIALS = {
    "protectedName": "the sandbox has denied a change of {paths}. A file or folder of this name directly in "
    "a writable folder is protected, because programs outside of the sandbox run its hooks or trust its "
    "settings. In place of a missing one, a command sees an empty read-only folder.",
    "readOnly": "the sandbox has denied writing to {paths}, which is outside of the writable folders.",
    "noAccess": "the sandbox gives no access to {paths}.",
    "network": "the sandbox has no network.",
    "signal": "the sandbox forbids a system call of the command.",
}
"""By the reason of a denial, or its kind."""

ASK_TO_ESCALATE = (
    'If this is needed, call {tool} again with sandbox_permissions "require_escalated" and a justification: '
    "the user is asked to let the command run without the sandbox."
)
TELL_THE_USER = (
    "You cannot ask for more permissions here: work without it, or tell the user what has to be permitted."
)

RETRY_REFUSED = "Not run again without the sandbox: "

KEEP_IN_FOREGROUND = (
    "Start a server with exec_command in the foreground, without &: the answer has a session ID, the server "
    "runs on, and write_stdin shows its further output."
)
KEEP_BY_ESCALATION = (
    "Use them within one command, or call {tool} with sandbox_permissions "
    '"require_escalated" and a justification: without the sandbox they run on.'
)
KEEP_IN_ONE_COMMAND = "Use them within one command."

TOO_LONG = "Instead, write the script to a file in parts, with one call for each, and run the file."

NO_PATCH_PROGRAM = (
    "Warning: the patch was not applied: there is no program apply_patch. Other parts of the command may "
    "have run. {advice}"
)
PATCH_BY_TOOL = "Call the tool apply_patch, with the patch as its input."
PATCH_BY_ARGUMENTS = 'Rerun as ["apply_patch", "<patch>"]'
PATCH_BY_SCRIPT = (
    "Rerun with nothing but the patch, in this form: apply_patch <<'EOF', the lines of the patch, EOF. "
    "Only `cd DIRECTORY &&` may come before it."
)


_SHOWN_HOSTS = 10

_COUNTED = 100
"""The number of processes up to which a server counts."""


class Shown(NamedTuple):
    """Output in the form for a model."""

    text: str
    truncated: bool
    """Whether the budget cut something, besides what the buffer had dropped."""


# -- output


def show(output: Snapshot, budget: Budget) -> Shown:
    """The output of a session within a budget.

    A cut is reported at its place and in the first line, which has the number of tokens of all output. The
    second line has the number of lines, or of the bytes that the buffer had dropped.
    """
    omission = omission_marker(output.omitted_bytes)
    text = output.text(f"\n{omission}\n")
    if not output.omitted_bytes:
        return show_text(text, budget)
    cut = _cut(text, budget)
    if cut is None:
        return Shown(text, False)
    # If the shown halves contain the marker of the buffer's gap, it needs no notice.
    notice = "" if omission in cut else f"{omission}\n"
    return Shown(f"{_truncation_warning(output.total_bytes)}\n{notice}\n{cut}", True)


def show_text(text: str, budget: Budget) -> Shown:
    """A complete text within a budget, like `show`."""
    cut = _cut(text, budget)
    if cut is None:
        return Shown(text, False)
    warning = _truncation_warning(len(text.encode("utf-8", "replace")))
    return Shown(f"{warning}\nTotal output lines: {count_lines(text)}\n\n{cut}", True)


def omission_marker(omitted_bytes: int) -> str:
    """The line between the two ends that a buffer kept."""
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
        text: the output from `show`.
        wall_seconds: the duration of the call.
        chunk_id: six hexadecimal digits; None for an answer without a process.
        exit_code: the exit code of a process that has ended.
        session_id: the id of a process that still runs.
        output_bytes: the size of the output since the last answer, before any cut; None for a text that is no
            output.
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
        text: all kept output.
        exit_code: the exit code; 124 for a command that reached its time limit.
        wall_seconds: the run time; shown with one decimal.
        budget: the limit of the text.
        timed_out_after: the time limit in seconds, if it ended the command.
    """
    if timed_out_after is not None:
        text = f"{timed_out(timed_out_after)}\n{text}"
    cut = _cut(text, budget)
    lines = [f"Exit code: {exit_code}", f"Wall time: {wall_seconds:.1f} seconds"]
    if cut is not None:
        lines.append(f"Total output lines: {count_lines(text)}")
    return Shown("\n".join([*lines, "Output:", text if cut is None else cut]), cut is not None)


def patch_envelope(text: str, *, wall_seconds: float, exit_code: int = 0) -> str:
    """The result of a patch. The tool that was called puts its own envelope around it."""
    shown = f"{wall_seconds:.1f}".removesuffix(".0")
    return f"Exit code: {exit_code}\nWall time: {shown} seconds\nOutput:\n{text}"


def timed_out(seconds: float) -> str:
    """The first line of the output of a command that reached its time limit."""
    return f"command timed out after {round(seconds * 1000)} milliseconds"


# -- failed calls


def rejected(reason: str, *, tool: str = "exec_command") -> str:
    """The text for a command that was refused by a rule, a policy or a reviewer."""
    message = f"Rejected({quoted(reason)})"
    return f"{tool} failed: CreateProcess {{ message: {quoted(message)} }}"


def not_started(reason: str, *, tool: str = "exec_command") -> str:
    """The text for a command that could not be started.

    Args:
        reason: the system's message, such as `No such file or directory (os error 2)`.
        tool: the name of the tool.
    """
    return rejected(f"Failed to create unified exec process: {reason}", tool=tool)


def may_have_run(reason: str, *, tool: str) -> str:
    """The text for a command whose start was not answered, and which may have run."""
    return (
        f"{tool} failed: the command may have run, in part or to its end ({reason}). "
        "If it still ran, it was ended. Look at what it has done before you run it again."
    )


def ran_within_sandbox(text: str) -> str:
    """The text for a second attempt that was not started."""
    return f"The sandbox was in the way of the command, which has run. It was to run again without it: {text}"


def lost_output(size: int, *, more: bool) -> str:
    """The warning about output that was lost."""
    amount = "some" if not size else f"at least {size} bytes" if more else f"{size} bytes"
    return f"Warning: {amount} of the output were lost on the way"


def unknown_session(session_id: int | str) -> str:
    """The text for input to a session that does not exist."""
    return f"write_stdin failed: Unknown process id {session_id}"


def line_too_long(message: str) -> str:
    """The text for input with a line that the terminal would cut."""
    return (
        f"write_stdin failed: {message}. Break the line, or write the text to a file and let the program "
        "read it."
    )


def unsupported_call(name: str, *, custom: bool = False) -> str:
    """The text for a call of an unknown tool; `custom` for a call with text instead of arguments."""
    return f"unsupported {'custom tool ' if custom else ''}call: {name}"


def retry_refused(reason: str) -> str:
    """The text for a refused second attempt without the sandbox."""
    return f"{RETRY_REFUSED}{reason}"


def session_warning(count: int, limit: int) -> str:
    """The warning for a model that leaves its sessions open."""
    return _SESSION_WARNING.format(count=count, limit=limit)


def ended_with_sandbox(count: int, names: Sequence[str], advice: str) -> str:
    """The warning about processes that a command left running, and that its sandbox ended.

    Args:
        count: how many; the server counts up to 100.
        names: their different names, not all if there are many.
        advice: how to keep them.
    """
    amount = (
        "1 process"
        if count == 1
        else f"{count} processes"
        if count < _COUNTED
        else f"{count} or more processes"
    )
    return (
        f"Warning: {amount} left running by the command ({', '.join(names)}) ended with it, because its "
        f"sandbox ends with the command. {advice}"
    )


def denied_hosts(hosts: Sequence[str]) -> str:
    """The warning about hosts that the network proxy denied, each with the reason."""
    more = len(hosts) - _SHOWN_HOSTS
    shown = "; ".join([*hosts[:_SHOWN_HOSTS], *([f"and {more} more"] if more > 0 else [])])
    return (
        f"Warning: the command was not allowed to reach {shown}. If this is needed, tell the user which host "
        "has to be allowed."
    )


# -- quoting

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}

_EXTENDING = ("Mn", "Me")
"""Categories of characters that would change the character before them, such as a quote."""


def quoted(text: str) -> str:
    """A string literal in Rust's debug format, which error texts of the reference use.

    Invisible characters are written as their code, in hexadecimal digits between braces.
    """
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if escape := _ESCAPES.get(character):
        return escape
    if character.isprintable() and unicodedata.category(character) not in _EXTENDING:
        return character
    return f"\\u{{{ord(character):x}}}"
