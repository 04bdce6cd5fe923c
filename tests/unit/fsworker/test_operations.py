"""A worker does the same as the daemon: the same results, the same errors, the same files."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import random
import signal
import stat
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execprotocol.errors import InternalError, InvalidRequest, RpcError
from execserver.filesystem import operations
from execserver.filesystem.files import Files
from execserver.filesystem.listing import entries_json, walk_json
from execserver.filesystem.reading import PIECE_BYTES, FileStream, LargeFile
from execserver.fsworker.pool import PoolTimes, WorkerPool
from tests.support.fs_workers import BareLauncher, policy_for
from tests.support.mounts import NO_FUSE, Mount, can_hang
from tests.unit.fsworker.conftest import Connection, look

_NAMES = [b"a", b"b c", "ü\u2028".encode(), b"\xff\xfe", b'"\\\n', b".hidden", b"%41", b"x" * 200]
_Limits = tuple[int, int, int, bool, bool]
_ALL: _Limits = (64, 10_000, 50_000, False, False)


def _grow(folder: bytes, chance: random.Random, depth: int) -> None:
    """Put some of everything into a folder."""
    for name in chance.sample(_NAMES, chance.randrange(1, len(_NAMES))):
        path = folder + b"/" + name
        match chance.randrange(6 if depth else 5):
            case 0:
                os.symlink(chance.choice([b"a", b"nothing", b"..", name]), path)
            case 1:
                os.mkfifo(path)
            case 2 | 3:
                with open(path, "wb") as file:
                    file.write(chance.randbytes(chance.randrange(3000)))
                os.chmod(path, chance.choice([0o600, 0o644, 0o755]))
            case _:
                os.mkdir(path)
                if depth:
                    _grow(path, chance, depth - 1)


def _picture(folder: Path) -> list[tuple[bytes, int, bytes]]:
    """Everything below a folder: path, mode, content."""
    found = []
    top = os.fsencode(folder)
    for directory, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found.append((os.path.relpath(path, top), mode, content))
    return sorted(found)


def _looks(files: Files, path: str, limits: list[_Limits]) -> Iterator[Awaitable[Any]]:
    """The operations that change nothing, each begun when it is its turn."""
    yield look(files, path)
    yield files.run(operations.canonicalize, path)
    yield files.list_json(operations.read_directory, entries_json, path)
    yield files.begin_reading(path, 9000)
    yield files.digest(path)
    for how in limits:
        yield files.list_json(operations.walk, walk_json, path, *how)


def _change(files: Files, kind: int, one: str, two: str, flag: float) -> Awaitable[Any]:
    """One of the operations that change something."""
    match kind:
        case 0:
            return files.run(operations.copy, one, two, flag < 0.7, False, False)
        case 1:
            return files.run(operations.create_directory, two, flag < 0.5, None)
        case 2:
            return files.write(two, base64.b64encode(b"%f" % flag).decode())
        case 3:
            return files.write(two, "no base64")
        case 4:
            return files.run(operations.rename, one, two, flag < 0.5)
        case _:
            return files.run(operations.remove, one, flag < 0.3, flag < 0.6)


async def _outcome(work: Awaitable[Any]) -> Any:
    """The result; of an error, all that a client can see of it."""
    try:
        result = await work
    except RpcError as error:
        return error.code, error.message, error.name, error.field
    return result


def _paths(tree: Path) -> list[str]:
    found = [str(tree), str(tree / "missing"), str(tree / "missing" / "below")]
    for directory, folders, files in os.walk(tree):
        found += [os.path.join(directory, name) for name in folders + files]
    return found


def test_only_paths_are_checked_against_patterns() -> None:
    for operation in operations.OPERATIONS.values():
        parameters = list(inspect.signature(operation.function).parameters.values())[1:]
        assert all(parameters[position].annotation == "str" for position, _ in operation.reads)


@pytest.mark.parametrize("seed", range(6))
async def test_looking_gives_the_same(
    pool: WorkerPool, connection: Connection, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    # Two levels down: links to `..` lead to nothing that other tests change.
    tree = tmp_path / "above" / "tree"
    tree.mkdir(parents=True)
    _grow(os.fsencode(tree), chance, 3)
    confined = connection.confined(pool, policy_for(tmp_path))
    limits: list[_Limits] = [
        _ALL,
        (1, 3, 7, True, True),
        (64, 10_000, 50_000, True, False),
        (0, 0, 9, False, False),
        (65, 1, 9, False, False),
    ]

    for path in chance.sample(_paths(tree), 3) + _paths(tree)[:12]:
        for inside, outside in zip(
            _looks(confined, path, limits), _looks(connection.direct, path, limits), strict=True
        ):
            assert await _outcome(inside) == await _outcome(outside), path


@pytest.mark.parametrize("seed", range(6))
async def test_changing_does_the_same(
    pool: WorkerPool, connection: Connection, tmp_path: Path, seed: int
) -> None:
    folders = [tmp_path / "direct", tmp_path / "confined"]
    for folder in folders:
        folder.mkdir()
        _grow(os.fsencode(folder), random.Random(seed), 2)
    # The modification times of the two are not the same, and nothing here looks at them.
    files: list[Files] = [connection.direct, connection.confined(pool, policy_for(tmp_path))]
    chance = random.Random(seed + 100)
    names = [os.path.relpath(path, folders[0]) for path in _paths(folders[0])]

    for _ in range(40):
        name, other, flag = chance.choice(names), chance.choice([*names, "new", "new/deep"]), chance.random()
        kind = chance.randrange(6)
        outcomes = [
            await _outcome(_change(side, kind, str(folder / name), str(folder / other), flag))
            for side, folder in zip(files, folders, strict=True)
        ]
        assert outcomes[0] == outcomes[1], (kind, name, other)
    assert _picture(folders[0]) == _picture(folders[1])


async def test_a_path_of_any_length_has_the_kernels_answer(
    pool: WorkerPool, connection: Connection, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))

    for length in (300, 5000, 70_000, 3_000_000):
        path = "/" + "x" * length
        assert await _outcome(look(confined, path)) == await _outcome(look(connection.direct, path))


async def test_a_large_file_comes_through_a_descriptor(
    pool: WorkerPool, connection: Connection, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    with open(path, "wb") as file:
        for number in range(200):
            file.write(number.to_bytes(4, "little") * (1 << 18))
    confined = connection.confined(pool, policy_for(tmp_path))

    content = await confined.begin_reading(str(path), None)
    assert isinstance(content, LargeFile)
    assert content.size == 200 << 20
    size, pieces = 0, FileStream(content, connection.calls, connection.descriptors)
    async for piece in pieces:
        data = base64.b64decode(piece)
        first = size >> 20
        assert data[:4] == first.to_bytes(4, "little")
        size += len(data)
        assert len(data) <= PIECE_BYTES

    assert size == 200 << 20
    # Its worker is still the same, and free for others.
    assert pool.workers == 1
    await look(confined, str(path))


async def test_a_handle_outlives_its_worker(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))
    descriptor = await confined.open(str(tmp_path / "file"), "replace")
    launcher.started[0].kill()

    with descriptor.borrow() as number:
        os.write(number, b"written")

    assert (tmp_path / "file").read_bytes() == b"written"


@pytest.mark.parametrize("mode", ["read", "replace"])
async def test_only_regular_files_can_be_opened(
    pool: WorkerPool, connection: Connection, tmp_path: Path, mode: Any
) -> None:
    os.mkfifo(tmp_path / "fifo")
    confined = connection.confined(pool, policy_for(tmp_path))

    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        theirs = await _outcome(confined.open(str(path), mode))
        assert theirs == await _outcome(connection.direct.open(str(path), mode))
        assert isinstance(theirs, tuple)


async def test_a_file_of_the_kernel_cannot_be_written_by_way_of_the_daemon(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))
    await look(confined)
    before = Path(f"/proc/{launcher.started[0].pid}/oom_score_adj").read_text()

    # Its own memory above all: writing to it would take over the worker.
    for work in (
        confined.open("/proc/self/mem", "replace"),
        confined.open("/proc/self/mem", "read"),
        confined.write("/proc/self/mem", "QUJD"),
        confined.write("/proc/self/oom_score_adj", "NTAw"),
        confined.begin_reading("/proc/thread-self/mem", None),
    ):
        with pytest.raises(InvalidRequest, match=r"^Permission denied \(os error 13\)$"):
            await work

    assert Path(f"/proc/{launcher.started[0].pid}/oom_score_adj").read_text() == before
    assert await confined.begin_reading("/proc/self/oom_score_adj", None)


async def test_a_new_name_that_a_pattern_denies_can_be_written_and_not_read(
    pool: WorkerPool, connection: Connection, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path, deny=[f"{tmp_path}/**/.env"]))
    (tmp_path / "sub").mkdir()
    secret = str(tmp_path / "sub" / ".env")
    await confined.write(secret, "QUJD")
    os.symlink(secret, tmp_path / "innocent")
    os.symlink(tmp_path / "sub", tmp_path / "way")
    (tmp_path / "folder" / ".env").mkdir(parents=True)
    (tmp_path / "folder" / ".env" / "file").write_text("secret")

    for path in (secret, str(tmp_path / "innocent"), str(tmp_path / "way" / ".env")):
        for work in (confined.begin_reading(path, None), confined.open(path, "read")):
            with pytest.raises(InvalidRequest, match="Permission denied"):
                await work
    for path in (secret, str(tmp_path / "way" / ".env")):
        with pytest.raises(InvalidRequest, match="Permission denied"):
            await confined.run(operations.copy, path, str(tmp_path / "copied"), False, False, False)
    for work in (
        confined.list_json(operations.read_directory, entries_json, str(tmp_path / "folder" / ".env")),
        confined.list_json(operations.walk, walk_json, str(tmp_path / "folder" / ".env"), *_ALL),
        confined.begin_reading(str(tmp_path / "folder" / ".env" / "file"), None),
    ):
        with pytest.raises(InvalidRequest, match="Permission denied"):
            await work

    assert (await look(confined, secret))["size"] == 3
    await confined.run(
        operations.copy, str(tmp_path / "innocent"), str(tmp_path / "link"), False, False, False
    )
    assert os.readlink(tmp_path / "link") == secret
    assert not (tmp_path / "copied").exists()


async def test_the_daemon_keeps_no_descriptor_of_what_it_opened(
    pool: WorkerPool, connection: Connection, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))
    await confined.write(str(tmp_path / "file"), "QUJD")
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(20):
        await confined.write(str(tmp_path / "file"), "QUJD")
        await confined.begin_reading(str(tmp_path / "file"), None)
        for path in ("fifo", "missing"):
            with pytest.raises(RpcError):
                await confined.open(str(tmp_path / path), "read")
        reading = asyncio.ensure_future(confined.open(str(tmp_path / "file"), "read"))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    await look(confined, str(tmp_path))

    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_copy_is_cancelled_with_its_connection_and_the_worker_goes_on(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").touch()
    leaving, policy = Connection(), policy_for(tmp_path)
    confined = leaving.confined(pool, policy)
    await look(confined)
    os.kill(launcher.started[0].pid, signal.SIGSTOP)

    copying = asyncio.ensure_future(
        confined.run(operations.copy, str(tmp_path / "tree"), str(tmp_path / "copied"), True, False, False)
    )
    await asyncio.sleep(0.05)
    leaving.close()
    with pytest.raises(asyncio.CancelledError):
        await copying
    os.kill(launcher.started[0].pid, signal.SIGCONT)

    assert (await look(connection.confined(pool, policy), str(tmp_path)))["isDirectory"]
    assert len(launcher.started) == 1
    # It had begun, saw that the request was withdrawn, and left nothing.
    assert os.listdir(tmp_path) == ["tree"]


async def test_the_old_content_stays_when_there_is_no_space_for_the_new(
    pool: WorkerPool, connection: Connection, mount: Mount
) -> None:
    folder = mount("tmpfs", "size=64k")
    confined = connection.confined(pool, policy_for(folder))
    await confined.write(str(folder / "file"), "QUJD")

    for files in (confined, connection.direct):
        with pytest.raises(InternalError, match="No space left on device") as full:
            await files.write(str(folder / "file"), base64.b64encode(bytes(1 << 20)).decode())
        assert full.value.name == "no_space"

    assert (folder / "file").read_bytes() == b"ABC"


async def test_a_worker_on_a_mount_whose_server_is_dead_holds_up_no_other(
    launcher: BareLauncher, connection: Connection, mount: Mount, tmp_path: Path
) -> None:
    if not can_hang():
        pytest.skip(NO_FUSE)
    pool = WorkerPool(launcher, times=PoolTimes(silent=5.0))
    stuck = connection.confined(pool, policy_for(tmp_path / "stuck"))
    others = connection.confined(pool, policy_for(tmp_path))
    asked = asyncio.ensure_future(look(stuck, str(mount("fuse") / "x")))

    assert (await look(others, str(tmp_path)))["isDirectory"]
    assert not asked.done()
    with pytest.raises(InternalError, match="did not answer for 5 s"):
        await asked
    assert (await look(stuck, str(tmp_path)))["isDirectory"]

    await pool.close()


async def test_a_long_list_does_not_block_the_loop(
    pool: WorkerPool, connection: Connection, memory_folder: Path
) -> None:
    for number in range(20_000):
        (memory_folder / f"{number:05}").touch()
    confined = connection.confined(pool, policy_for(memory_folder))
    await look(confined)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    listed = await confined.list_json(operations.read_directory, entries_json, str(memory_folder))
    walked = await confined.list_json(operations.walk, walk_json, str(memory_folder), *_ALL)
    counting.cancel()

    assert len(json.loads(listed)) == 20_000
    assert len(json.loads(walked)["entries"]) == 20_000
    # The work takes a hundred of them; one that it blocked would have had two.
    assert turns > 5
