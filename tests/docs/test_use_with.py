"""What the page "Use it with …" promises beyond its blocks, which `test_blocks.py` follows."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from lsprotocol.types import (
    ClientCapabilities,
    CompletionParams,
    InitializeParams,
    Position,
    TextDocumentIdentifier,
)
from pygls.lsp.client import LanguageClient

from tests.conftest import StartServer
from tests.docs.pages import ROOT, blocks_of
from tests.support.cutting_proxy import Direction, cutting

PAGE = ROOT / "docs" / "how-to" / "use-with.md"
QUESTIONS = 40
CUTS = 12


async def ask(client: LanguageClient) -> str:
    place = CompletionParams(TextDocumentIdentifier("file:///words.txt"), Position(0, 0))
    items = await client.text_document_completion_async(place)
    assert isinstance(items, list)
    return ", ".join(item.label for item in items)


async def test_a_language_server_answers_each_question_once_while_its_connection_is_cut(
    start_server: StartServer, tmp_path: Path
) -> None:
    (program,) = (block for block in blocks_of(PAGE) if block.title == "server.py")
    (tmp_path / "server.py").write_text(program.text)
    daemon = start_server(f"unix://{tmp_path}/s")
    chance = random.Random(24)
    directions: tuple[Direction, Direction] = ("to client", "to server")
    cuts = iter([(chance.choice(directions), chance.randrange(600, 2_000)) for _ in range(CUTS)])

    async with cutting(daemon.url, tmp_path, lambda: next(cuts, None)) as proxy:
        client = LanguageClient("editor", "1.0")
        command = [sys.executable, "-m", "execserver", "run", "--cwd", str(tmp_path), "--"]
        environment = {**os.environ, "EXECSERVER_URL": proxy.url}
        await client.start_io(*command, sys.executable, "server.py", env=environment)
        await client.initialize_async(InitializeParams(capabilities=ClientCapabilities()))
        answers = [await ask(client) for _ in range(QUESTIONS)]
        answers += await asyncio.gather(*(ask(client) for _ in range(QUESTIONS)))
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    assert answers == ["completed on Linux"] * 2 * QUESTIONS
    assert proxy.cuts > CUTS / 2  # the client may be the first to end a connection that does not begin well
