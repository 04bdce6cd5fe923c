"""The tools of an MCP server besides those of the toolset: `list_sessions`, and the file tools.

The file tools have the names with which this server began: hosts have them in permissions and prompts. They
see what a command in the sandbox sees.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from execclient.tools.arguments import IGNORED, Arguments, GlobArguments, GrepArguments, NullIsAbsent
from execclient.tools.context import CallContext
from execclient.tools.file_tools import GlobHandler, GrepHandler, ListDirHandler, ReadFileHandler, fitting
from execclient.tools.function_handler import FunctionHandler
from execclient.tools.registry import ToolHandler, ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.specs import ToolSpec, all_specs
from execclient.tools.toolset import Toolset
from execclient.tools.truncation import DEFAULT_MAX_OUTPUT_TOKENS, Budget

_LIMIT = Budget(DEFAULT_MAX_OUTPUT_TOKENS, "tokens")
"""Of an answer of a file tool, whatever a call asks for."""


class SearchFilesArguments(GrepArguments):
    """The arguments of `search_files`: as for `grep`, but by default plain text, also in ignored files."""

    reference_struct = ("SearchFilesArguments", 11)

    regex: Annotated[
        bool, NullIsAbsent(), Field(description="Whether the pattern is a regular expression of Rust.")
    ] = False
    ignored: Annotated[bool, NullIsAbsent(), Field(description=IGNORED)] = True


class FindFilesArguments(GlobArguments):
    """The arguments of `find_files`: as for `glob`, but ignored files are found by default."""

    reference_struct = ("FindFilesArguments", 5)

    ignored: Annotated[bool, NullIsAbsent(), Field(description=IGNORED)] = True


class SearchFiles(GrepHandler):
    """Finds lines by their text."""

    model = SearchFilesArguments


class FindFiles(GlobHandler):
    """Finds files by their names."""

    model = FindFilesArguments


class ListSessionsArguments(Arguments):
    """The arguments of `list_sessions`: none."""

    reference_struct = ("ListSessionsArguments", 0)


class ListSessions(FunctionHandler[ListSessionsArguments]):
    """Lists the commands that run on."""

    model = ListSessionsArguments
    beside_others = True

    async def mutates(self, context: CallContext, arguments: ListSessionsArguments) -> bool:
        """False."""
        return False

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
        shown, cut = fitting([f"{line}\n" for line in lines], _LIMIT)
        more = "[there are more]" if cut or len(shown) < len(lines) else ""
        text = "".join(shown) + more or "[no command runs]"
        return CallRecord(
            invocation.call_id, invocation.tool_name, text=text, aggregated=text, truncated=bool(more)
        )


_GIVEN = all_specs()

_LIST_SESSIONS = ToolSpec(
    "list_sessions",
    "Lists the commands of exec_command that still run or have output that was not read.",
    ListSessionsArguments,
)
_LIST_DIRECTORY = replace(_GIVEN["list_dir"], name="list_directory")
_READ_FILE = _GIVEN["read_file"]
_SEARCH_FILES = replace(_GIVEN["grep"], name="search_files", model=SearchFilesArguments)
_FIND_FILES = replace(_GIVEN["glob"], name="find_files", model=FindFilesArguments)

SPECS = (_LIST_SESSIONS, _LIST_DIRECTORY, _READ_FILE, _SEARCH_FILES, _FIND_FILES)


def register(toolset: Toolset) -> None:
    """Add the tools."""

    def add(handler: ToolHandler[CallRecord], spec: ToolSpec) -> None:
        toolset.registry.register(handler, (spec.name,), spec, exposed=True)

    # A question to the user may keep another call waiting for minutes: these do not wait for it.
    add(ListSessions(), _LIST_SESSIONS)
    add(ListDirHandler(_LIMIT, beside_others=True), _LIST_DIRECTORY)
    add(ReadFileHandler(_LIMIT, beside_others=True), _READ_FILE)
    add(SearchFiles(_LIMIT, beside_others=True), _SEARCH_FILES)
    add(FindFiles(_LIMIT, beside_others=True), _FIND_FILES)
