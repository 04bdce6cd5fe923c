from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from execprotocol import filesystem
from execprotocol.errors import InvalidRequest
from execprotocol.methods import METHODS
from execprotocol.path_uri import path_to_uri
from execserver.filesystem.blocking import CALLS_PER_CONNECTION
from tests.unit.filesystem.caller import StubCaller

_LIMITS = {"maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": False}

_PATH_METHODS: dict[str, dict[str, Any]] = {
    "fs/readFile": {},
    "fs/writeFile": {"dataBase64": "QUJD"},
    "fs/createDirectory": {},
    "fs/getMetadata": {},
    "fs/canonicalize": {},
    "fs/readDirectory": {},
    "fs/walk": {"options": _LIMITS},
    "fs/remove": {},
    "fs/open": {"handleId": "h", "mode": "replace"},
}


def test_every_method_of_the_family_has_a_handler(caller: StubCaller) -> None:
    # Searches and watches have modules of their own.
    of_files = {name for name, method in METHODS.items() if method.params.__module__ == filesystem.__name__}
    assert set(caller._handlers) == of_files


async def _refused(caller: StubCaller, method: str, **params: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        await caller.call(method, **params)
    return refused.value.message


@pytest.mark.parametrize("uri", ["file://host/x", "file:///C:/x"])
async def test_a_path_of_another_host_is_refused(caller: StubCaller, tmp_path: Path, uri: str) -> None:
    text = f"'{uri}' is invalid on 'linux'"

    for method, params in _PATH_METHODS.items():
        assert await _refused(caller, method, path=uri, **params) == text
    for source, destination in ((uri, tmp_path / "x"), (tmp_path, uri)):
        message = await _refused(
            caller, "fs/copy", sourcePath=source, destinationPath=destination, recursive=True
        )
        assert message == text
    assert await _refused(caller, "fs/watchMissing", watchId=1, missing=[uri]) == text
    assert await _refused(caller, "fs/watchMissing", watchId=1, missing=[tmp_path / "x"], present=uri) == text


_SANDBOX = {
    "permissions": {
        "type": "managed",
        "network": "enabled",
        "file_system": {"type": "restricted", "entries": []},
    },
    "windowsSandboxLevel": "disabled",
}


async def test_a_sandbox_that_must_be_enforced_is_refused_and_nothing_is_done(
    caller: StubCaller, tmp_path: Path
) -> None:
    target = tmp_path / "target"

    for method, params in _PATH_METHODS.items():
        message = await _refused(caller, method, path=target, sandbox=_SANDBOX, **params)
        assert message.startswith("failed to prepare process sandbox: ")
    message = await _refused(
        caller,
        "fs/copy",
        sourcePath=Path("/etc/hostname"),
        destinationPath=target,
        recursive=False,
        sandbox=_SANDBOX,
    )
    assert message.startswith("failed to prepare process sandbox: ")
    assert os.listdir(tmp_path) == []


async def test_a_sandbox_that_limits_nothing_is_none(caller: StubCaller, tmp_path: Path) -> None:
    sandbox = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}

    for _ in range(2):
        await caller.call("fs/writeFile", path=tmp_path / "file", dataBase64="QUJD", sandbox=sandbox)
    metadata = await caller.call("fs/getMetadata", path=tmp_path / "file", sandbox=sandbox)

    assert metadata["size"] == 3


async def test_a_lookup_is_answered_at_once_where_no_mount_can_hang(
    caller: StubCaller, tmp_path: Path
) -> None:
    (tmp_path / "sp ace é#?%").touch()

    metadata = caller.begin("fs/getMetadata", path=tmp_path)
    canonical = caller.begin("fs/canonicalize", path=tmp_path / "sp ace é#?%")

    assert isinstance(metadata, dict)
    assert metadata["isDirectory"]
    assert isinstance(canonical, dict)
    assert canonical["path"].endswith("/sp%20ace%20%C3%A9%23%3F%25")


async def test_a_mount_of_another_process_does_not_hang_the_loop(
    caller: StubCaller, dead_mount: Path, tmp_path: Path
) -> None:
    stuck = [
        asyncio.ensure_future(caller.call(method, path=dead_mount / "x"))
        for method in ("fs/getMetadata", "fs/canonicalize")
    ]

    await caller.call("fs/createDirectory", path=tmp_path / "made")

    assert not any(call.done() for call in stuck)
    for call in stuck:
        call.cancel()


async def test_the_plain_methods_do_what_they_say(caller: StubCaller, tmp_path: Path) -> None:
    assert await caller.call("fs/createDirectory", path=tmp_path / "a" / "b") == {}
    assert await caller.call("fs/writeFile", path=tmp_path / "a" / "b" / "file", dataBase64="QUJD") == {}
    copied = await caller.call(
        "fs/copy", sourcePath=tmp_path / "a", destinationPath=tmp_path / "c", recursive=True
    )
    assert copied == {}
    assert await caller.call("fs/remove", path=tmp_path / "a") == {}
    assert await caller.call("fs/readDirectory", path=tmp_path) == {
        "entries": [{"fileName": "c", "isDirectory": True, "isFile": False}]
    }
    walked = await caller.call("fs/walk", path=tmp_path, options={**_LIMITS, "maxEntries": 9})
    assert [entry["kind"] for entry in walked["entries"]] == ["directory"]


async def test_batches_let_the_other_requests_of_their_connection_pass(
    caller: StubCaller, tmp_path: Path
) -> None:
    """There are as many batches as a connection has threads. If each kept its thread to its end, the other
    request would come after one of them.
    """
    (tmp_path / "file").write_bytes(b"x")

    def batch(number: int) -> Awaitable[Any]:
        uris = [path_to_uri(f"{tmp_path}/{number}.{entry}") for entry in range(160)]
        entries = [{"path": uri, "permissions": 0o644, "dataBase64": "eA=="} for uri in uris]
        return caller.call("fs/putFiles", entries=entries)

    ended: list[str] = []

    async def note(name: str, request: Awaitable[Any]) -> None:
        await request
        ended.append(name)

    requests = [note("batch", batch(number)) for number in range(CALLS_PER_CONNECTION)]
    await asyncio.gather(*requests, note("other", caller.call("fs/digest", path=tmp_path / "file")))

    assert ended == ["other"] + ["batch"] * CALLS_PER_CONNECTION
