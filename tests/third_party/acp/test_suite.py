"""Agents of others, over stdio: one of pydantic-ai-harness, and one of ACP's own classes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import acp
from acp.schema import ClientCapabilities, FileSystemCapabilities
from acp.stdio import spawn_agent_process

from tests.third_party.acp.conftest import Editor

CAPABILITIES = ClientCapabilities(
    terminal=True, fs=FileSystemCapabilities(read_text_file=True, write_text_file=True)
)


async def turn(editor: Editor, agent: str, folder: Path) -> str:
    """One prompt to an agent; what it says."""
    script = str(Path(__file__).with_name(agent))
    async with spawn_agent_process(editor, sys.executable, script) as (connection, process):
        await connection.initialize(acp.PROTOCOL_VERSION, client_capabilities=CAPABILITIES)
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        done = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("go")])
        assert done.stop_reason == "end_turn"
    assert process.returncode is not None
    return editor.said


async def test_an_agent_of_pydantic_ai_harness_uses_terminals_and_files(editor: Editor, folder: Path) -> None:
    said = await turn(editor, "agent_of_harness.py", folder)
    path = folder / "src/answer.py"
    assert said.split("|") == [
        f"Wrote {path} (13 characters).",
        "print(6 * 7)\n",
        "42\nwhy\n\n[exited with code 3]",
        "\n[terminated by signal SIGKILL]",
    ]
    assert path.read_text() == "print(6 * 7)\n"


async def test_an_agent_of_acp_uses_each_method(editor: Editor, folder: Path) -> None:
    line, code, output, signal, error = json.loads(await turn(editor, "agent_of_acp.py", folder))
    assert (line, code, output, signal) == ("two\n", 0, f"3 {folder}/notes.txt\n", "SIGKILL")
    assert error == [-32602, "path must be absolute, not 'notes.txt'"]
