"""The table of file operations that a thread of the daemon, or an fs worker, carries out as a whole.

Each function below is one operation: its name, its parameters and its result. `DirectFiles` calls it.
`ConfinedFiles` sends its name and arguments to a worker, which calls it there. The files
that the daemon reads and writes through a descriptor are not in the table (`files.py`).

Workers have this module too. Modules that few workers need are imported by the functions, so that a worker
starts sooner.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.filesystem import directories
from execserver.filesystem import metadata as lookups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Generic, TypeVar, TypeVarTuple

    from execprotocol.filesystem import Metadata
    from execserver.filesystem.cancel import StopFlag
    from execserver.filesystem.walk import Seen

    T = TypeVar("T")
    Ts = TypeVarTuple("Ts")
else:

    class Generic:
        """In place of the one of `typing`, which takes longer to import than all modules of a worker."""

        def __class_getitem__(cls, _: object) -> type:
            return cls

    T, Ts = object, (object,)


class ResultFormat(Generic[T]):
    """How a worker sends a result.

    Args:
        encode: gives the body of the reply.
        decode: reads it as data, never as code. Raises a `ValueError` or a `KeyError` for other bytes.
    """

    __slots__ = ("decode", "encode")

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self.encode = encode
        self.decode = decode


class Operation(Generic[*Ts, T]):
    """One row of the table. `operation` makes it of a function.

    Args:
        function: carries it out. It takes a stop flag, then paths (as `str`), content (as `bytes`), numbers,
            flags and None.
        result: the format of its result.
        reads: which arguments are paths that a pattern of the policy may deny: the position of the argument,
            and whether a link at its end is followed.
        newest: if the policy has patterns, a worker that started before the request is not used.
    """

    __slots__ = ("function", "name", "newest", "reads", "result")

    def __init__(
        self,
        function: Callable[[StopFlag, *Ts], T],
        result: ResultFormat[T],
        reads: tuple[tuple[int, bool], ...],
        newest: bool,
    ) -> None:
        self.name = function.__name__
        self.function = function
        self.result = result
        self.reads = reads
        self.newest = newest


OPERATIONS: dict[str, Operation[*tuple[object, ...], object]] = {}
"""All operations by name."""


def operation(
    result: ResultFormat[T], *, reads: tuple[tuple[int, bool], ...], newest: bool = False
) -> Callable[[Callable[[StopFlag, *Ts], T]], Operation[*Ts, T]]:
    """Put a function into the table (`Operation`)."""

    def add(function: Callable[[StopFlag, *Ts], T]) -> Operation[*Ts, T]:
        row = Operation(function, result, reads, newest)
        OPERATIONS[row.name] = row  # type: ignore[assignment]  # called with the arguments that its name came with
        return row

    return add


# -- formats of results. Names and paths in a list end with a NUL, which no path contains.


def _encode_metadata(found: Metadata) -> bytes:
    body = b"%d %d %d %d %d" % (
        found["isDirectory"], found["isFile"], found["isSymlink"], found["size"], found["modifiedAtMs"]
    )  # fmt: skip
    if "permissions" not in found:
        return body
    return body + b" %d %d %d" % (found["permissions"], found["modifiedAtNs"], found["accessedAtNs"])


def _decode_metadata(body: bytes) -> Metadata:
    directory, file, link, size, modified, *extended = map(int, body.split())
    found: Metadata = {
        "isDirectory": bool(directory),
        "isFile": bool(file),
        "isSymlink": bool(link),
        "size": size,
        "createdAtMs": 0,
        "modifiedAtMs": modified,
    }
    if extended:
        found["permissions"], found["modifiedAtNs"], found["accessedAtNs"] = extended
    return found


def _encode_entries(found: Iterable[tuple[str, int]]) -> bytes:
    """For each entry `d`, `f` or `o` (directory, file, other) and its name."""
    body = bytearray()
    for name, kind in found:
        body += b"d" if kind == stat.S_IFDIR else b"f" if kind == stat.S_IFREG else b"o"
        body += os.fsencode(name)
        body += b"\0"
    return bytes(body)


def _decode_entries(body: bytes) -> Iterable[tuple[str, int]]:
    kinds = {b"d": stat.S_IFDIR, b"f": stat.S_IFREG, b"o": 0}
    for item in body.split(b"\0")[:-1]:
        yield os.fsdecode(item[1:]), kinds[item[:1]]


def _encode_seen(found: Iterable[Seen]) -> bytes:
    """For each item `d`, `f` or the number of an error, and the path; `t` alone for a truncated walk."""
    body = bytearray()
    for kind, path in found:
        body += kind[0].encode() if isinstance(kind, str) else b"%d" % kind
        body += os.fsencode(path)
        body += b"\0"
    return bytes(body)


def _decode_seen(body: bytes) -> Iterable[Seen]:
    for item in body.split(b"\0")[:-1]:
        kind, slash, rest = item.partition(b"/")
        path = os.fsdecode(slash + rest)
        if kind == b"d":
            yield "directory", path
        elif kind == b"f":
            yield "file", path
        elif kind == b"t":
            yield "truncated", ""
        else:
            yield int(kind), path


NOTHING: ResultFormat[None] = ResultFormat(lambda nothing: b"", lambda body: None)
FLAG: ResultFormat[bool] = ResultFormat(lambda flag: b"1" if flag else b"", bool)
PATH: ResultFormat[str] = ResultFormat(os.fsencode, os.fsdecode)
METADATA = ResultFormat(_encode_metadata, _decode_metadata)
ENTRIES: ResultFormat[Iterable[tuple[str, int]]] = ResultFormat(_encode_entries, _decode_entries)
SEEN: ResultFormat[Iterable[Seen]] = ResultFormat(_encode_seen, _decode_seen)


# -- the operations


@operation(METADATA, reads=())
def metadata(stop: StopFlag, path: str, extended: bool) -> Metadata:
    """`fs/getMetadata` (`metadata.metadata`)."""
    return lookups.metadata(path, extended=extended)


@operation(PATH, reads=())
def canonicalize(stop: StopFlag, path: str) -> str:
    """`fs/canonicalize` (`metadata.canonicalize`)."""
    return lookups.canonicalize(path)


@operation(NOTHING, reads=())
def create_directory(stop: StopFlag, path: str, recursive: bool, permissions: int | None) -> None:
    """`fs/createDirectory` (`directories.create_directory`)."""
    directories.create_directory(path, recursive=recursive, permissions=permissions)


@operation(ENTRIES, reads=((0, True),))
def read_directory(stop: StopFlag, path: str) -> Iterable[tuple[str, int]]:
    """`fs/readDirectory` (`directories.entries`)."""
    return directories.entries(path, stop)


@operation(SEEN, reads=((0, True),), newest=True)
def walk(
    stop: StopFlag,
    path: str,
    max_depth: int,
    max_directories: int,
    max_entries: int,
    follow_links: bool,
    prune_hidden: bool,
) -> Iterable[Seen]:
    """`fs/walk` (`walk.visit`)."""
    from execserver.filesystem.walk import WalkLimits, visit

    limits = WalkLimits(max_depth, max_directories, max_entries, follow_links, prune_hidden)
    return visit(path, limits, stop)


@operation(NOTHING, reads=())
def remove(stop: StopFlag, path: str, recursive: bool, force: bool) -> None:
    """`fs/remove` (`tree_operations.remove`)."""
    from execserver.filesystem import tree_operations

    tree_operations.remove(path, recursive=recursive, force=force)


# Copied or renamed, a file that a pattern denies could be read under its new name. The target of a link could
# not: the link itself is copied or renamed.


@operation(FLAG, reads=((0, False),), newest=True)
def copy(
    stop: StopFlag, source: str, destination: str, recursive: bool, keep_mode: bool, preserve_times: bool
) -> bool:
    """`fs/copy` (`tree_operations.copy`)."""
    from execserver.filesystem import tree_operations

    options = tree_operations.CopyOptions(keep_mode, preserve_times)
    return tree_operations.copy(source, destination, recursive=recursive, stop=stop, options=options)


@operation(NOTHING, reads=((0, False),), newest=True)
def rename(stop: StopFlag, source: str, destination: str, overwrite: bool) -> None:
    """`fs/rename` (`directories.rename`)."""
    directories.rename(source, destination, overwrite=overwrite)


# The destination is read when it has to be written in place.
@operation(FLAG, reads=((0, False), (1, True)), newest=True)
def install(
    stop: StopFlag,
    source: str,
    destination: str,
    permissions: int | None,
    modified: int | None,
    accessed: int | None,
) -> bool:
    """`fs/install` (`replacing.install`); times in nanoseconds since 1970."""
    from execserver.filesystem import replacing

    wanted = replacing.Attributes(permissions, modified, accessed)
    return replacing.install(source, destination, wanted, stop)


# The old content is read only to be restored after a failure, into a file that no request can open.
@operation(FLAG, reads=())
def put_file(
    stop: StopFlag,
    path: str,
    content: bytes,
    sha256: str | None,
    keep_mode: bool,
    permissions: int,
    modified: int | None,
    accessed: int | None,
) -> bool:
    """A file of `fs/putFiles` (`replacing.put`); times in nanoseconds since 1970."""
    from execserver.filesystem import replacing

    wanted = replacing.Attributes(permissions, modified, accessed)
    return replacing.put(path, content, sha256, wanted, keep_mode=keep_mode, stop=stop)


@operation(FLAG, reads=())
def put_directory(stop: StopFlag, path: str, permissions: int) -> bool:
    """A directory of `fs/putFiles` (`directories.ensure_directory`). It is never written in place."""
    if not directories.ensure_directory(path, permissions):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return False


@operation(NOTHING, reads=())
def set_metadata(
    stop: StopFlag, path: str, permissions: int | None, modified: int | None, accessed: int | None
) -> None:
    """`fs/setMetadata` (`replacing.Attributes`); times in nanoseconds since 1970."""
    from execserver.filesystem import replacing

    replacing.Attributes(permissions, modified, accessed).set(path)
