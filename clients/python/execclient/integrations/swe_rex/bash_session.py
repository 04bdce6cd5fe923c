"""A bash at the daemon, on a terminal, that runs one command after the other.

Rules kept in this file:

1. Each prompt has the exit code of the command before it, and the id of that command, which is part of the
   typed line. So an earlier prompt, as after an interrupt, is never taken for that of a later command.
2. A command is typed as base64 and evaluated as a whole: any text of any length is one command, and needs no
   file.
3. Output that no call has returned, as after a time limit, comes first in the output of the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pexpect.exceptions import EOF, TIMEOUT
from swerex.exceptions import CommandTimeoutError, SessionDoesNotExistError, SwerexException
from swerex.runtime.abstract import BashAction, BashInterruptAction, BashObservation

from execclient.expect import RemoteSpawn

__all__ = ["BashSession", "bash_argv", "prompt_mark"]

_BASH = 'stty -echo && echo "$0" && exec bash --noediting'
"""Says when the echo is off. A line editor would echo what is typed all the same."""

_LINE = 1000
"""Characters of base64 in a line. A terminal takes 4,095 bytes of one."""

_START_SECONDS = 30.0
"""For a shell to start, with the files that it reads by itself, at a busy daemon."""

_KILL_SECONDS = 10.0
"""For a prompt, once a job that ignores interrupts is stopped or killed."""

_POLL_SECONDS = 0.01
"""Between two looks at a call in another task, which may have another event loop."""

_KILL_STOPPED_JOB = '[ -z "$(jobs -s %+ 2>/dev/null)" ] || kill -9 %+'
"""After Ctrl-Z. A job that runs in the background is not the one that was interrupted."""

_ESCAPES = re.compile(r"\x1b\[\?2004l\r?|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def prompt_mark(session_id: str, name: str) -> str:
    """What the prompts of a bash begin with. Another client of the session computes the same."""
    return "rex" + hashlib.sha256(f"{session_id}/{name}".encode()).hexdigest()[:20]


def bash_argv(mark: str) -> list[str]:
    """The command of a bash for a `BashSession`."""
    return ["sh", "-c", _BASH, mark]


class BashSession:
    """A bash on a terminal.

    Args:
        spawn: the bash, by `bash_argv`.
        mark: the text of its prompts.
    """

    def __init__(self, spawn: RemoteSpawn, mark: str) -> None:
        self._spawn = spawn
        self._mark = mark
        self._any_prompt = rf"{mark}:(\d+):(\w*):"
        self._notices = ""
        """What bash reported about a job that an interrupt has killed."""
        self._used = False
        """Whether a call waits for output."""

    async def start(self) -> str:
        """Set the prompts; what the shell has written before the first one.

        Raises:
            CommandTimeoutError, SessionDoesNotExistError: there is no bash, or one that does not begin.
        """
        await self._expect([rf"{self._mark}\r?\n"], _START_SECONDS, "bash")
        # Set before each prompt: programs change it, such as those that activate an environment of Python.
        prompt = f'PS1="{self._mark}:\\$?:\\$__rex:" PS2= PS0=; stty -echo 2>/dev/null'
        setup = f"set +H +o history; export PROMPT_COMMAND='{prompt}' __rex PS1"
        return (await self._evaluate(setup, (), _START_SECONDS))[0]

    def skip_old_output(self) -> None:
        """Drop the output up to the last prompt, of a bash that another client has used. Blocks."""
        size = -1
        while len(self._spawn.buffer) != size:
            size = len(self._spawn.buffer)
            # All that was written before is here already.
            while self._spawn.expect([self._any_prompt, TIMEOUT], timeout=0) == 0:
                size = -1

    async def run(self, action: BashAction) -> BashObservation:
        """Run a command of the shell to its end, or until one of the expected texts.

        Returns:
            An observation whose exit code is None in the second case.

        Raises:
            CommandTimeoutError: it runs on, and `interrupt` can end it.
            SessionDoesNotExistError: it has ended the shell.
            SwerexException: another call uses the session.
        """
        with self._in_use():
            output, code, matched = await self._evaluate(action.command, action.expect, action.timeout)
            notices, self._notices = self._notices, ""
        return BashObservation(output=notices + output, exit_code=code, expect_string=matched)

    async def interact(self, action: BashAction) -> BashObservation:
        """Type a line into the program that has the terminal, until one of the expected texts or a prompt.

        Raises as `run`.
        """
        with self._in_use():
            await asyncio.to_thread(self._spawn.sendline, action.command)
            patterns = [*action.expect, self._any_prompt]
            output, _, matched = await self._expect(patterns, action.timeout, action.command)
        # A program with a line editor echoes the line.
        output = output.removeprefix(action.command.rstrip("\n") + "\n")
        return BashObservation(output=output, exit_code=0, expect_string=matched)

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """Type Ctrl-C until there is a prompt, and kill a program that ignores it.

        If another call waits for the command, that call gets the output.

        Raises:
            CommandTimeoutError: there is still no prompt.
            SessionDoesNotExistError: the shell has ended.
        """
        for _ in range(action.n_retry):
            await asyncio.to_thread(self._spawn.sendintr)
            with suppress(CommandTimeoutError):
                return await self._interrupted(action, action.timeout)
        await asyncio.to_thread(self._spawn.sendcontrol, "z")
        observation = await self._interrupted(action, max(action.timeout, _KILL_SECONDS))
        with self._in_use():
            self._notices += (await self._evaluate(_KILL_STOPPED_JOB, (), _KILL_SECONDS))[0]
        return observation

    def close(self) -> None:
        """Forget the terminal of a shell that has ended. Blocks."""
        self._spawn.wait()
        self._spawn.close()

    async def _interrupted(self, action: BashInterruptAction, limit: float) -> BashObservation:
        """Wait for the prompt, or for the call that waits for it."""
        if self._used:
            try:
                async with asyncio.timeout(limit):
                    await self._free()
            except TimeoutError:
                raise CommandTimeoutError(f"timeout after {limit} seconds while interrupting") from None
            return BashObservation(exit_code=0)
        with self._in_use():
            output, _, matched = await self._expect([*action.expect, self._any_prompt], limit, "Ctrl-C")
        return BashObservation(output=output.strip(), exit_code=0, expect_string=matched)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if self._used:
            remedy = "wait for it, or send a BashInterruptAction"
            raise SwerexException(f"the session runs another command: {remedy}")
        self._used = True
        try:
            yield
        finally:
            self._used = False

    async def _free(self) -> None:
        while self._used:  # noqa: ASYNC110 - the other call may be in another event loop
            await asyncio.sleep(_POLL_SECONDS)

    async def _evaluate(
        self, command: str, expected: Sequence[str], limit: float | None
    ) -> tuple[str, int | None, str]:
        """Run a command of the shell. Returns as `_expect`."""
        name = uuid.uuid4().hex[:12]
        encoded = b64encode(command.encode("utf-8", "surrogateescape")).decode()
        lines = [encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE)] or [""]
        line = f'__rex={name}; eval "$(head -n {len(lines)} | base64 -d)"'
        await asyncio.to_thread(self._spawn.send, "\n".join([line, *lines, ""]))
        return await self._expect([*expected, rf"{self._mark}:(\d+):{name}:"], limit, command)

    async def _expect(
        self, patterns: list[str], limit: float | None, command: str
    ) -> tuple[str, int | None, str]:
        """The text before the first match, the exit code if that is the last pattern, and what matched."""
        spawn = self._spawn
        try:
            index: int = await spawn.expect([*patterns], timeout=limit, async_=True)
        except TIMEOUT:
            raise CommandTimeoutError(f"timeout after {limit} seconds while running {command!r}") from None
        except EOF:
            raise SessionDoesNotExistError(
                f"the shell has ended with exit code {spawn.exitstatus} while running {command!r}: "
                f"create the session again. Here is the output:\n{self._clean(spawn.before)!r}"
            ) from None
        output, match = self._clean(spawn.before), spawn.match
        assert isinstance(match, re.Match)
        prompt = match.lastindex and index == len(patterns) - 1
        return output, int(match[1]) if prompt else None, match[0] if prompt else patterns[index]

    def _clean(self, output: object) -> str:
        without_prompts = re.sub(self._any_prompt, "", str(output))
        return _ESCAPES.sub("", without_prompts).replace("\r\n", "\n")
