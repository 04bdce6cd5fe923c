"""The methods of an ACP client, by the words of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import psutil
import pytest
from acp import RequestError
from acp.schema import EnvVariable

from execclient import WorkspaceWrite, connect
from tests.support.wire import PATIENCE, Server, wait_gone
from tests.third_party.acp.conftest import Editor

NOT_FOUND, INVALID, FAILED = -32002, -32602, -32603


async def output_of(editor: Editor, command: str, args: list[str] | None = None, **options: object) -> str:
    """The output of a command, after its exit."""
    terminal_id = (await editor.create_terminal("s", command, args, **options)).terminal_id  # type: ignore[arg-type]
    await editor.wait_for_terminal_exit("s", terminal_id)
    output = (await editor.terminal_output("s", terminal_id)).output
    await editor.release_terminal("s", terminal_id)
    return output


async def test_a_command_without_arguments_is_a_line_for_the_shell(editor: Editor, folder: Path) -> None:
    assert await output_of(editor, "echo one && echo two >&2; pwd") == f"one\ntwo\n{folder}\n"


async def test_arguments_are_literal(editor: Editor) -> None:
    assert await output_of(editor, "printf", ["%s|%s", "$HOME", "a b"]) == "$HOME|a b"


async def test_a_command_has_its_variables_and_directory(editor: Editor, folder: Path) -> None:
    (folder / "below").mkdir()
    env = [EnvVariable(name="ONE", value="1")]
    output = await output_of(editor, "echo $ONE; pwd", env=env, cwd=str(folder / "below"))
    assert output == f"1\n{folder}/below\n"


async def test_the_exit_is_a_code_or_the_name_of_a_signal(editor: Editor) -> None:
    for command, code, name in (
        ("exit 7", 7, None),
        ("no-such-program", 127, None),
        ("kill -SEGV $$", None, "SIGSEGV"),
    ):
        terminal_id = (await editor.create_terminal("s", command)).terminal_id
        done = await editor.wait_for_terminal_exit("s", terminal_id)
        assert (done.exit_code, done.signal) == (code, name)
        status = (await editor.terminal_output("s", terminal_id)).exit_status
        assert status is not None
        assert (status.exit_code, status.signal) == (code, name)


async def test_a_missing_program_is_a_command_that_fails(editor: Editor) -> None:
    assert "no-such-program: not found" in await output_of(editor, "no-such-program", ["x"])


async def test_without_a_sandbox_an_exit_code_is_not_mistaken_for_a_signal(url: str, folder: Path) -> None:
    async with connect(url) as executor:
        editor = Editor(executor, workspace=str(folder), sandbox=None)
        for command, code, name in (("exit 137", 137, None), ("kill -9 $$", None, "SIGKILL")):
            terminal_id = (await editor.create_terminal("s", command)).terminal_id
            done = await editor.wait_for_terminal_exit("s", terminal_id)
            assert (done.exit_code, done.signal) == (code, name)


async def test_output_can_be_read_while_the_command_runs(editor: Editor, folder: Path) -> None:
    terminal_id = (
        await editor.create_terminal("s", "echo one; until [ -e go ]; do sleep 0.02; done; echo two")
    ).terminal_id
    async with asyncio.timeout(PATIENCE):
        while (now := await editor.terminal_output("s", terminal_id)).output != "one\n":
            await asyncio.sleep(0.01)
    assert now.exit_status is None
    assert not now.truncated
    waiting = [asyncio.create_task(editor.wait_for_terminal_exit("s", terminal_id)) for _ in range(3)]
    await editor.write_text_file("s", f"{folder}/go", "")
    assert [each.exit_code for each in await asyncio.gather(*waiting)] == [0, 0, 0]
    assert (await editor.terminal_output("s", terminal_id)).output == "one\ntwo\n"


async def test_output_with_an_exit_status_is_whole(editor: Editor) -> None:
    expected = "".join(f"{n}\n" for n in range(1, 100_001))
    terminal_id = (await editor.create_terminal("s", "seq 100000")).terminal_id
    async with asyncio.timeout(PATIENCE):
        while (done := await editor.terminal_output("s", terminal_id)).exit_status is None:
            assert expected.startswith(done.output)
            await asyncio.sleep(0)
    assert done.output == expected
    assert not done.truncated


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (0, ""),
        (1, ""),
        (2, "é"),
        (3, "é"),
        (5, "éé"),
        (10, "ééééé"),
        (11, "xééééé"),
        (20, "xééééé"),
    ],
)
async def test_the_beginning_of_too_much_output_is_dropped_up_to_a_whole_character(
    editor: Editor, limit: int, kept: str
) -> None:
    text = "xééééé"
    terminal_id = (await editor.create_terminal("s", "printf", [text], output_byte_limit=limit)).terminal_id
    await editor.wait_for_terminal_exit("s", terminal_id)
    done = await editor.terminal_output("s", terminal_id)
    assert done.output == kept
    assert done.truncated is (kept != text)


async def test_a_limit_holds_for_much_output(editor: Editor) -> None:
    terminal_id = (await editor.create_terminal("s", "seq 300000", output_byte_limit=14)).terminal_id
    await editor.wait_for_terminal_exit("s", terminal_id)
    done = await editor.terminal_output("s", terminal_id)
    assert (done.output, done.truncated) == ("299999\n300000\n", True)


async def test_bytes_that_are_no_text_and_characters_in_two_pieces(editor: Editor) -> None:
    assert await output_of(editor, r"printf '\377'; printf '\303'; sleep 0.2; printf '\251'") == "\ufffdé"


async def test_a_kill_leaves_the_terminal_and_its_output(editor: Editor, folder: Path) -> None:
    terminal_id = (
        await editor.create_terminal("s", "echo $$; echo x > begun; sleep 3600; echo never")
    ).terminal_id
    async with asyncio.timeout(PATIENCE):
        while not (folder / "begun").exists():
            await asyncio.sleep(0.01)
    await editor.kill_terminal("s", terminal_id)
    done = await editor.wait_for_terminal_exit("s", terminal_id)
    assert (done.exit_code, done.signal) == (None, "SIGKILL")
    assert (await editor.terminal_output("s", terminal_id)).output.split()[1:] == []
    await editor.kill_terminal("s", terminal_id)  # again does nothing
    await editor.release_terminal("s", terminal_id)


async def test_a_release_kills_the_command_with_its_descendants(url: str, folder: Path) -> None:
    async with connect(url) as executor:
        editor = Editor(executor, workspace=str(folder), sandbox=None)
        terminal_id = (
            await editor.create_terminal("s", "setsid sleep 3600 & echo $! > pid; sleep 3600")
        ).terminal_id
        pid = folder / "pid"
        async with asyncio.timeout(PATIENCE):
            while not (pid.exists() and pid.read_text()):
                await asyncio.sleep(0.01)
        await editor.release_terminal("s", terminal_id)
        assert await asyncio.to_thread(wait_gone, int(pid.read_text()), PATIENCE)


async def test_a_terminal_belongs_to_its_session_until_it_is_released(editor: Editor) -> None:
    terminal_id = (await editor.create_terminal("s", "true")).terminal_id
    with pytest.raises(RequestError, match="there is no terminal") as raised:
        await editor.terminal_output("another", terminal_id)
    assert (raised.value.code, raised.value.data) == (NOT_FOUND, {"terminalId": terminal_id})
    await editor.release_terminal("s", terminal_id)
    for method in (
        editor.terminal_output,
        editor.wait_for_terminal_exit,
        editor.kill_terminal,
        editor.release_terminal,
    ):
        with pytest.raises(RequestError, match="or it was released"):
            await method("s", terminal_id)


async def test_the_terminals_of_a_session_can_be_released_together(editor: Editor) -> None:
    ours = [(await editor.create_terminal("s", "sleep 3600")).terminal_id for _ in range(2)]
    other = (await editor.create_terminal("another", "echo x")).terminal_id
    await editor.release_terminals("s")
    for terminal_id in ours:
        with pytest.raises(RequestError):
            await editor.terminal_output("s", terminal_id)
    assert (await editor.wait_for_terminal_exit("another", other)).exit_code == 0


async def test_a_file_is_written_and_read_whole_or_by_lines(editor: Editor, folder: Path) -> None:
    path, text = f"{folder}/new/folder/file.txt", "one\ntwo\r\nthree\x0cstill three\nfour"
    await editor.write_text_file("s", path, text)
    assert Path(path).read_bytes() == text.encode()
    assert (await editor.read_text_file("s", path)).content == text
    for line, limit, content in (
        (1, None, text),
        (2, 1, "two\r\n"),
        (3, 2, "three\x0cstill three\nfour"),
        (None, 1, "one\n"),
        (0, 1, "one\n"),
        (4, 9, "four"),
        (5, None, ""),
        (1, 0, ""),
    ):
        assert (await editor.read_text_file("s", path, line, limit)).content == content


async def test_errors_have_a_code_and_the_reason(editor: Editor, folder: Path) -> None:
    (folder / "bytes").write_bytes(b"\xff")
    cases = (
        (editor.read_text_file("s", "file"), INVALID, "path must be absolute"),
        (editor.write_text_file("s", "file", ""), INVALID, "path must be absolute"),
        (editor.create_terminal("s", "true", cwd="folder"), INVALID, "cwd must be absolute"),
        (editor.read_text_file("s", f"{folder}/missing"), NOT_FOUND, "No such file"),
        (editor.read_text_file("s", str(folder)), INVALID, "is not a file"),
        (editor.read_text_file("s", f"{folder}/bytes"), INVALID, "can't decode"),
        (editor.write_text_file("s", str(folder), ""), INVALID, "s a directory"),
        (editor.create_terminal("s", "true", cwd=f"{folder}/missing"), NOT_FOUND, "missing"),
        (editor.create_terminal("s", "a\0b"), INVALID, "NUL"),
    )
    for call, code, reason in cases:
        with pytest.raises(RequestError, match=reason) as raised:
            await call
        assert raised.value.code == code


async def test_a_command_and_a_file_outside_the_workspace_fail_unless_there_is_no_sandbox(
    url: str, folder: Path, tmp_path: Path
) -> None:
    outside = str(tmp_path / "outside")
    strict = WorkspaceWrite(
        exclude_slash_tmp=True, exclude_tmpdir=True
    )  # the folders of tests are below /tmp
    async with connect(url) as executor:
        confined = Editor(executor, workspace=str(folder), sandbox=strict)
        assert "Read-only file system" in await output_of(confined, f"echo x > {outside}")
        # The working directory of a call is no workspace.
        assert "Read-only file system" in await output_of(confined, "echo x > outside", cwd=str(tmp_path))
        with pytest.raises(RequestError, match="the sandbox does not allow writing here"):
            await confined.write_text_file("s", outside, "x")
        assert not os.path.exists(outside)

        free = Editor(executor, workspace=str(folder), sandbox=None)
        assert await output_of(free, f"echo x > {outside}") == ""
        await free.write_text_file("s", outside, "y")
        assert (await free.read_text_file("s", outside)).content == "y"


async def test_the_root_is_no_workspace(url: str) -> None:
    async with connect(url) as executor:
        with pytest.raises(ValueError, match="pass a folder as workspace"):
            Editor(executor, workspace="/")


async def test_nothing_is_left_behind(
    url: str, daemon: Server, folder: Path, request: pytest.FixtureRequest
) -> None:
    client = psutil.Process()
    files, tasks = client.num_fds(), len(asyncio.all_tasks())
    async with connect(url) as executor:
        editor = Editor(executor, workspace=str(folder))
        for _ in range(3):
            await output_of(editor, "sleep 3598 & echo x")
            await editor.create_terminal("s", "sleep 3598")
        await editor.release_terminals()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == tasks
    # With chaos, the proxy of this process has some that come and go.
    assert request.config.getoption("--chaos") or client.num_fds() == files
    async with asyncio.timeout(PATIENCE):
        while sleeping(daemon.pid):
            await asyncio.sleep(0.05)


def sleeping(supervisor: int) -> list[int]:
    """The commands of the test above that run below a daemon."""
    found = []
    for each in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if "3598" in each.cmdline():
                found.append(each.pid)
    return found
