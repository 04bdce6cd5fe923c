"""The workspace as a tar stream, and sessions that are made from one."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from agents.sandbox.errors import WorkspaceArchiveReadError, WorkspaceArchiveWriteError
from agents.sandbox.snapshot import LocalSnapshotSpec

from execclient import ReadOnly
from execclient.govern.sandbox import SandboxPolicy
from execclient.integrations.openai_agents import ExecServerSandboxClient
from tests.third_party.openai_agents.test_session import root_of, started, text_of

MAKE = """
mkdir -p bin empty skip .git && echo run > bin/run && chmod 750 bin/run && ln bin/run hard
ln -s bin/run link && ln -s $PWD/bin/run absolute && mkfifo fifo && echo x > skip/x && chmod 6755 hard
head -c 3000000 /dev/urandom > large && echo config > .git/config && echo odd > 'a "name"
'
"""


def tree(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Kind, permission bits and content of everything below a folder."""
    found = {}
    for path in root.rglob("*"):
        status, name = path.lstat(), path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = ("link", 0, os.fsencode(os.readlink(path)))
        elif path.is_dir():
            found[name] = ("dir", status.st_mode & 0o7777, b"")
        elif path.is_file():
            found[name] = ("file", status.st_mode & 0o7777, path.read_bytes())
        else:
            found[name] = ("special", 0, b"")
    return found


def archive(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """A tar stream of members: a name, a type of `tarfile`, and the target or the content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755
            content = text.encode() if kind == tarfile.REGTYPE else b""
            info.linkname = "" if kind == tarfile.REGTYPE else text
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


async def test_a_workspace_is_packed_and_unpacked_with_its_modes_and_links(url: str) -> None:
    client = ExecServerSandboxClient(url)
    async with started(client) as one, started(client) as other:
        assert (await one.exec(MAKE)).exit_code == 0
        expected = tree(root_of(one))
        one.register_persist_workspace_skip_path("skip")
        with await one.persist_workspace() as stream:
            await other.hydrate_workspace(stream)
        del expected["fifo"], expected["skip"], expected["skip/x"]
        # Each hard link is a file of its own, without set-id bits; a link into the workspace is relative.
        for name in ("hard", "bin/run"):
            expected[name] = ("file", 0o755, b"run\n")
        expected["absolute"] = ("link", 0, b"bin/run")
        assert tree(root_of(other)) == expected


@pytest.mark.parametrize("sandbox", [ReadOnly(), None], ids=["read-only", "none"])
@pytest.mark.without_chaos
async def test_a_workspace_is_saved_and_restored_under_any_policy(
    url: str, tmp_path: Path, sandbox: SandboxPolicy | None
) -> None:
    client = ExecServerSandboxClient(url, sandbox=sandbox)
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with session:
        await session.hydrate_workspace(archive(("dir/file", tarfile.REGTYPE, "one")))
    await client.delete(session)
    assert not root_of(session).exists()

    saved = client.serialize_session_state(session.state)
    resumed = await client.resume(client.deserialize_session_state(saved))
    async with resumed:
        assert await text_of(resumed, "dir/file") == "one"
    await client.delete(resumed)


@pytest.mark.parametrize("sandboxed", [True, False])
@pytest.mark.without_chaos
async def test_an_archive_does_not_leave_the_workspace(url: str, outside: Path, sandboxed: bool) -> None:
    archives = {
        "parent traversal": archive(("../file", tarfile.REGTYPE, "x")),
        "absolute path": archive((f"{outside}/file", tarfile.REGTYPE, "x")),
        "descends through symlink": archive(
            ("out", tarfile.SYMTYPE, "in"), ("in", tarfile.DIRTYPE, ""), ("out/file", tarfile.REGTYPE, "x")
        ),
        "absolute symlink target": archive(("link", tarfile.SYMTYPE, str(outside))),
        "escapes archive root": archive(("link", tarfile.SYMTYPE, "../../outside")),
        "hardlink": archive(("hard", tarfile.LNKTYPE, "/etc/passwd")),
        "unsupported member type": archive(("device", tarfile.CHRTYPE, "")),
        "symlink in parent path: present": archive(("present/file", tarfile.REGTYPE, "x")),
        "symlink in parent path: odd\udcff": archive(("odd\udcff/file", tarfile.REGTYPE, "x")),
        "could not be opened": io.BytesIO(b"no archive"),
    }
    client = ExecServerSandboxClient(url) if sandboxed else ExecServerSandboxClient(url, sandbox=None)
    async with started(client) as session:
        await session.exec(f"ln -s {outside} present; ln -s {outside} $(printf 'odd\\377')")
        for reason, data in archives.items():
            with pytest.raises(WorkspaceArchiveWriteError) as caught:
                await session.hydrate_workspace(data)
            assert reason in str(caught.value.context["reason"])
        assert (await session.exec("ls -A | sort")).stdout == b"odd\xff\npresent\n"
        # A folder of the archive takes the place of the link.
        over = archive(("present", tarfile.DIRTYPE, ""), ("present/file", tarfile.REGTYPE, "x"))
        await session.hydrate_workspace(over)
        assert await text_of(session, "present/file") == "x"
    assert list(outside.iterdir()) == []


@pytest.mark.without_chaos
async def test_a_file_that_cannot_be_read_fails_the_archive_with_its_name(url: str) -> None:
    async with started(ExecServerSandboxClient(url)) as session:
        await session.exec("ln -s / 'a\\\\b'")
        with pytest.raises(WorkspaceArchiveReadError) as caught:
            await session.persist_workspace()
        assert "windows path separator" in str(caught.value.context["reason"])
