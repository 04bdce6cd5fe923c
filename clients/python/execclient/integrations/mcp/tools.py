"""The tools of an MCP server besides those of the toolset: they read files, search them, and list commands.

A toolset calls them as it calls its own. They see what a command in its sandbox sees.
"""

from __future__ import annotations

import shlex
from typing import Annotated

from pydantic import Field

from execclient.filesystem import FileSystem
from execclient.govern.sandbox import ReadOnly, WorkspaceWrite
from execclient.search import Truncated, find, search
from execclient.tools.arguments import Arguments, NullIsAbsent, Parsed
from execclient.tools.context import CallContext
from execclient.tools.errors import RespondToModel
from execclient.tools.function_handler import FunctionHandler
from execclient.tools.json_shapes import Integer
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.specs import ToolSpec
from execclient.tools.toolset import Toolset

MAX_FILE_BYTES = 16 << 20
"""Above it, a command reads a part without sending the whole file."""

MAX_TEXT_BYTES = 40_000
"""Of one answer: about 10,000 tokens, as for a command."""

MAX_ENTRIES = 1000
"""Names, paths or lines in one answer."""

_WHOLE = Integer("a whole number, 1 or more", 1, 2**31 - 1)

_PATH = "Absolute, or relative to the workspace."
_GLOB = "Such as *.py, or src/**/*.ts for paths below the folder."


class ListDirectoryArguments(Arguments):
    """The arguments of `list_directory`."""

    reference_struct = ("ListDirectoryArguments", 1)

    path: Annotated[str, NullIsAbsent(), Field(description=f"The folder. {_PATH}")] = "."


class ReadFileArguments(Arguments):
    """The arguments of `read_file`."""

    reference_struct = ("ReadFileArguments", 3)

    path: Annotated[str, Field(description=f"The file. {_PATH}")]
    offset: Annotated[
        int, _WHOLE, NullIsAbsent(), Field(ge=1, description="The first line to read, from 1.")
    ] = 1
    limit: Annotated[
        int | None, _WHOLE, Field(ge=1, description="The number of lines; as many as fit if absent.")
    ] = None


class SearchFilesArguments(Arguments):
    """The arguments of `search_files`."""

    reference_struct = ("SearchFilesArguments", 5)

    pattern: Annotated[str, Field(description="The text to find, in one line.")]
    path: Annotated[str, NullIsAbsent(), Field(description=f"The folder or file. {_PATH}")] = "."
    glob: Annotated[str | None, Field(description=f"The names of the files to search. {_GLOB}")] = None
    regex: Annotated[
        bool, NullIsAbsent(), Field(description="Whether the pattern is a regular expression.")
    ] = False
    ignore_case: Annotated[bool, NullIsAbsent(), Field(description="Whether case does not matter.")] = False


class FindFilesArguments(Arguments):
    """The arguments of `find_files`."""

    reference_struct = ("FindFilesArguments", 2)

    glob: Annotated[str, Field(description=f"The names of the files. {_GLOB}")]
    path: Annotated[str, NullIsAbsent(), Field(description=f"The folder. {_PATH}")] = "."


class ListSessionsArguments(Arguments):
    """The arguments of `list_sessions`: none."""

    reference_struct = ("ListSessionsArguments", 0)


class _ReadingHandler(FunctionHandler[Parsed]):
    """The base of tools that change nothing."""

    beside_others = True  # a question to the user may keep another call waiting for minutes

    async def mutates(self, context: CallContext, arguments: Parsed) -> bool:
        """False."""
        return False


class ListDirectory(_ReadingHandler[ListDirectoryArguments]):
    """Lists a folder."""

    model = ListDirectoryArguments

    async def call(
        self, context: CallContext, arguments: ListDirectoryArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """The names, those of folders with a slash."""
        entries = await _files(context).iterdir(context.resolve(arguments.path))
        names = sorted(f"{each.name}/" if each.is_dir else each.name for each in entries)
        return _answer(invocation, names, "the folder is empty", cut=len(names) > MAX_ENTRIES)


class ReadFile(_ReadingHandler[ReadFileArguments]):
    """Reads lines of a text file."""

    model = ReadFileArguments

    async def call(
        self, context: CallContext, arguments: ReadFileArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """The lines, and a note if there are more."""
        files, path = _files(context), context.resolve(arguments.path)
        size = (await files.stat(path)).size
        if size > MAX_FILE_BYTES:
            command = f"sed -n '1,200p' {shlex.quote(path)}"
            raise RespondToModel(f"{path} has {size} bytes: read a part of it with exec_command: {command}")
        data = await files.read_bytes(path)
        if b"\0" in data:
            raise RespondToModel(f"{path} is no text: it has {size} bytes, with NUL among them")
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        first = arguments.offset - 1
        if first and first >= len(lines):
            raise RespondToModel(f"offset: {path} has {len(lines)} lines")
        last = len(lines) if arguments.limit is None else min(first + arguments.limit, len(lines))
        text = _fitting(lines[first:last], MAX_TEXT_BYTES)
        end = first + len(text)
        if end == first and lines:
            raise RespondToModel(f"line {arguments.offset} of {path} is longer than {MAX_TEXT_BYTES} bytes")
        shown = "".join(text)
        if end < len(lines):
            shown += f"\n[lines {arguments.offset} to {end} of {len(lines)}; go on with offset {end + 1}]"
        return _record(invocation, shown or "[the file is empty]", truncated=end < last)


class SearchFiles(_ReadingHandler[SearchFilesArguments]):
    """Finds lines by their text."""

    model = SearchFilesArguments

    async def call(
        self, context: CallContext, arguments: SearchFilesArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """The lines, each as `PATH:LINE:TEXT`."""
        try:
            found = await search(
                context.executor,
                arguments.pattern,
                context.resolve(arguments.path),
                regex=arguments.regex,
                ignore_case=arguments.ignore_case,
                glob=arguments.glob,
                sandbox=context.sandbox,
                workspace=context.cwd,
                max_matches=MAX_ENTRIES,
                max_bytes=MAX_TEXT_BYTES,
            )
        except ValueError as error:
            raise RespondToModel(str(error)) from error
        lines = [f"{_shown(context, path)}:{line}:{text}" for path, line, text in found.matches]
        return _answer(invocation, [*lines, *found.unread], "no line matches", cut=found.truncated)


class FindFiles(_ReadingHandler[FindFilesArguments]):
    """Finds files by their names."""

    model = FindFilesArguments

    async def call(
        self, context: CallContext, arguments: FindFilesArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """The paths."""
        try:
            found = await find(
                context.executor,
                arguments.glob,
                context.resolve(arguments.path),
                sandbox=context.sandbox,
                workspace=context.cwd,
                max_files=MAX_ENTRIES,
                max_bytes=MAX_TEXT_BYTES,
            )
        except (ValueError, NotADirectoryError) as error:
            raise RespondToModel(str(error)) from error
        paths = [_shown(context, path) for path in found.paths]
        return _answer(invocation, [*paths, *found.unread], "no file matches", cut=found.truncated)


class ListSessions(_ReadingHandler[ListSessionsArguments]):
    """Lists the commands that run on."""

    model = ListSessionsArguments

    async def call(
        self, context: CallContext, arguments: ListSessionsArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """The session ids with their commands."""
        lines = [
            f"session_id {number}: {'exited' if session.exec.exited else 'running'}, "
            f"{session.exec.both.total_bytes} bytes of output not read, in {session.call.params.cwd}: "
            f"{shlex.join(session.call.params.command)}"
            for number, session in context.services.sessions
        ]
        return _answer(invocation, lines, "no command runs", cut=None)


_TOOLS = (
    (
        ListSessions(),
        ToolSpec(
            "list_sessions",
            "Lists the commands of exec_command that still run or have output that was not read.",
            ListSessionsArguments,
        ),
    ),
    (
        ListDirectory(),
        ToolSpec(
            "list_directory",
            "Lists the names in a folder; those of folders end with a slash.",
            ListDirectoryArguments,
        ),
    ),
    (ReadFile(), ToolSpec("read_file", "Reads a text file, or some lines of it.", ReadFileArguments)),
    (
        SearchFiles(),
        ToolSpec(
            "search_files",
            "Finds the lines of files that have a text, as PATH:LINE:TEXT. Hidden and ignored files are "
            "searched, too, but not .git.",
            SearchFilesArguments,
        ),
    ),
    (
        FindFiles(),
        ToolSpec("find_files", "Finds files by their names, in all folders below one.", FindFilesArguments),
    ),
)

SPECS = tuple(spec for _, spec in _TOOLS)


def register(toolset: Toolset) -> None:
    """Add the tools."""
    for handler, spec in _TOOLS:
        toolset.registry.register(handler, (spec.name,), spec, exposed=True)


def _files(context: CallContext) -> FileSystem:
    sandbox = context.sandbox
    if isinstance(sandbox, WorkspaceWrite):
        # The same may be read, and no folder is listed that only protects its name (`docs/protocol.md`, C18).
        sandbox = ReadOnly(deny_read=sandbox.deny_read)
    return context.executor.fs.confined(sandbox, workspace=context.cwd)


def _shown(context: CallContext, path: str) -> str:
    """A path below the workspace without it, as other calls take it."""
    prefix = context.cwd.rstrip("/") + "/"
    return path.removeprefix(prefix)


def _fitting(lines: list[str], budget: int) -> list[str]:
    """The first lines that fit into a budget of bytes."""
    for count, line in enumerate(lines):
        budget -= len(line.encode("utf-8", "replace"))
        if budget < 0:
            return lines[:count]
    return lines


def _answer(
    invocation: ToolInvocation, lines: list[str], nothing: str, *, cut: Truncated | bool | None
) -> CallRecord:
    fitting = _fitting([f"{each}\n" for each in lines[:MAX_ENTRIES]], MAX_TEXT_BYTES)
    truncated = bool(cut) or len(fitting) < len(lines)
    note = "\n[there are more: narrow the call down]" if truncated else ""
    return _record(invocation, "".join(fitting) + note if lines else f"[{nothing}]", truncated=truncated)


def _record(invocation: ToolInvocation, text: str, *, truncated: bool) -> CallRecord:
    return CallRecord(
        invocation.call_id, invocation.tool_name, text=text, aggregated=text, truncated=truncated
    )
