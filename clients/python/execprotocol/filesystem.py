"""`fs/*`: the executor's file system (`docs/protocol.md`, "File system")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias, TypedDict

from msgspec import Meta, ValidationError

from execprotocol.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ENTRIES,
    MAX_BLOCK_BYTES,
    MAX_EDITS,
    MAX_HANDLE_ID_BYTES,
    MAX_WALK_DEPTH,
    MAX_WALK_DIRECTORIES,
    MAX_WALK_ENTRIES,
)
from execprotocol.model import (
    EXTENSION,
    U64,
    Base64Bytes,
    Base64Text,
    MismatchError,
    Params,
    PathUri,
    WireError,
    WrittenBase64,
    WrittenUri,
    decode,
    stated,
    text,
    wire_type,
)
from execprotocol.sandbox import SandboxContext

Permissions = Annotated[int, Meta(ge=0, le=0o7777)]
"""The permission bits of a file, with the set-id and sticky bits."""

Nanoseconds = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A time in nanoseconds since 1970. Most programs that read JSON as floating point lose the last 256."""


# `kw_only` makes `sandbox` the last positional parameter, whatever members a method adds.
class _Sandboxed(Params, kw_only=True):
    sandbox: SandboxContext | None = None
    """What the request may access; null means no limit."""


class PathParams(_Sandboxed):
    """A request about one path."""

    path: PathUri
    """The path of the request."""


class ReadFileParams(PathParams):
    """Read a whole file; links are followed.

    At most 512 MiB. Use `fs/open` and `fs/readBlock` for larger files, and for files whose reply would
    not fit into a WebSocket message of 64 MiB. A directory, a fifo and a device are refused. A file that
    reports no size, such as those of `/proc`, is read to its end.
    """


class WriteFileParams(PathParams):
    """Create a file, or replace the content of one in place.

    An existing file keeps its inode, mode and links. A new file gets the mode 0666 without the bits of
    the daemon's umask; its folder must exist. If the disk is full, the old content is kept.
    """

    # Decoded by the handler: invalid base64 is -32600 here, and the text may be as large as a message.
    data_base64: Base64Text
    """The new content of the file; may be empty."""


class CreateDirectoryParams(PathParams):
    """Create a directory, by default with its parents."""

    extension_members = frozenset({"permissions"})

    recursive: bool = True
    """Whether missing parents are created, too, and an existing directory is no error."""

    permissions: Permissions | None = None
    """The permission bits of a new directory, as a number, without the bits of the daemon's umask. Null for
    0777, which missing parents always get."""


class GetMetadataParams(PathParams):
    """Get the kind, size and times of a path.

    Links are followed, so a dangling link is not found.
    """


class CanonicalizeParams(PathParams):
    """Resolve all links of a path, which must exist and may be of any kind."""


class ReadDirectoryParams(PathParams):
    """List the names in one directory, in no order.

    Dangling links are omitted. An entry that is neither a directory nor a file has both flags false.
    """


class RemoveParams(PathParams):
    """Remove a file, a link or a directory; a link is removed itself, never its target."""

    recursive: bool = True
    """Whether a directory is removed with its content; otherwise only an empty directory is removed."""

    force: bool = True
    """Whether a missing path is no error. Other errors are still reported."""


class CopyParams(_Sandboxed):
    """Copy a file, a link or a tree, completely or not at all.

    A file is copied with its permission bits, and replaces an existing one; the folder above it must exist.
    A link is copied as a link. A directory is copied to a free path; missing parents are created, and special
    files in it are omitted. A growing file is copied up to its size at the time when it was opened.
    """

    extension_members = frozenset({"keep_mode", "preserve_times"})

    source_path: PathUri
    """What to copy: a regular file, a link or a directory."""

    destination_path: PathUri
    """The full path of the copy, not only its folder."""

    recursive: bool
    """Whether a directory may be copied; otherwise a directory is refused."""

    keep_mode: bool = False
    """Whether an existing file keeps its permission bits, and new files and directories get those of their
    source without the set-id and sticky bits, as with cp(1)."""

    preserve_times: bool = False
    """Whether copies get the times of last access and last change of their source."""


class SetMetadataParams(PathParams):
    """Set the permission bits and the times of a file or a directory; links are followed."""

    permissions: Permissions | None = None
    """The permission bits as a number, such as 420 for 0644; null keeps them."""

    modified_at_ns: Nanoseconds | None = None
    """The time of the last change of the content, in nanoseconds since 1970; null keeps it."""

    accessed_at_ns: Nanoseconds | None = None
    """The time of the last access, in nanoseconds since 1970; null keeps it."""


class InstallParams(_Sandboxed):
    """Move a finished file to its destination, which has all of the new content or all of the old one.

    The file is renamed. It gets the owner, access list, extended attributes and permission bits of a replaced
    file. A destination that cannot be renamed to is written in place: a mount point, a file of another owner,
    or a file in a folder that takes no new names or is on another file system. A failure then restores the
    old content, if there was room to keep it; only a kill leaves a part of the new one.
    """

    source_path: PathUri
    """The finished file: a regular file, not a link. It is removed."""

    destination_path: PathUri
    """The full path of the destination; links are followed. The folder above it must exist."""

    permissions: Permissions | None = None
    """The permission bits as a number; null for those of the replaced file, else of the source."""

    modified_at_ns: Nanoseconds | None = None
    """The time of the last change, in nanoseconds since 1970; null for that of the source."""

    accessed_at_ns: Nanoseconds | None = None
    """The time of the last access, in nanoseconds since 1970; null for that of the source."""


class RenameParams(_Sandboxed):
    """Rename a file, a link or a directory atomically: at no time do both names exist, or neither.

    Open handles stay with their file, and a link is renamed itself, never its target. Both paths must be on
    one file system. If both are names of the same file, nothing happens.
    """

    source_path: PathUri
    """What to rename."""

    destination_path: PathUri
    """The full new path, not only its folder; the folder above it must exist."""

    overwrite: bool = True
    """Whether a file may replace a file, and a directory an empty directory; otherwise an existing
    destination is an error."""


class DigestParams(PathParams):
    """Read a regular file of any size and return its SHA-256; links are followed."""

    extension_members = frozenset({"size"})

    size: U64 | None = None
    """How many bytes to read from the beginning, at most up to the end; null for all. For growing files."""


def _sha256(value: Any) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text(value)):
        raise WireError(f"`sha256` is no SHA-256 in 64 lower-case hexadecimal digits: `{value}`")
    return text(value)


def _always_true(value: Any) -> bool:
    if value is not True:
        raise MismatchError("Input should be true")
    return True


if TYPE_CHECKING:
    Sha256: TypeAlias = str
    AlwaysTrue: TypeAlias = Literal[True]
else:
    Sha256 = wire_type(_sha256, str, type="string", pattern="^[0-9a-f]{64}$")
    AlwaysTrue = wire_type(_always_true, bool, type="boolean", const=True)


class ExpectedContent(Params):
    """A regular file with this content; links are followed."""

    sha256: Sha256
    """The SHA-256 of the content in 64 hexadecimal digits, as `fs/digest` returns it."""


class ExpectedAbsent(Params):
    """No file and no folder; a dangling link counts as nothing."""

    absent: AlwaysTrue
    """Always true; there is no other value."""


def _expected(value: Any) -> ExpectedContent | ExpectedAbsent:
    """The models have no tag: the first one that fits is used."""
    try:
        return decode(ExpectedContent, value)
    except ValidationError:
        return decode(ExpectedAbsent, value)


if TYPE_CHECKING:
    Expected: TypeAlias = ExpectedContent | ExpectedAbsent
else:
    Expected = wire_type(_expected, ExpectedContent, ExpectedAbsent, anyOf=[ExpectedContent, ExpectedAbsent])


class WriteEdit(Params, tag_field="op", tag="write"):
    """Create a file, or replace its content."""

    op: ClassVar[Literal["write"]] = "write"
    """The tag of this kind of edit."""

    path: PathUri
    """The file; links are followed, and kept."""

    # Decoded by the handler, as in `fs/writeFile`.
    data_base64: Base64Text
    """The new content of the file; may be empty."""

    expected: Expected | None = None
    """The expected current state; null for a regular file or nothing."""

    create_parents: bool = False
    """Whether missing folders above the file are created."""

    mode_from: PathUri | None = None
    """A file whose permission bits a new file gets, such as the old path of a moved file; null for 0666
    without the bits of the daemon's umask. An existing file keeps its own."""


class RemoveEdit(Params, tag_field="op", tag="remove"):
    """Remove a file or a link, never its target. The path must exist, and a directory is refused."""

    op: ClassVar[Literal["remove"]] = "remove"
    """The tag of this kind of edit."""

    path: PathUri
    """What to remove."""

    expected: ExpectedContent | None = None
    """The expected current state; null for anything but a directory."""


class ApplyEditsParams(_Sandboxed):
    """Change several files as one: all edits are carried out, or none.

    The expectations of all edits are checked first. Then all new files are written beside their destinations,
    and a journal of the edits is written to the disk. From then on the edits are carried out, at the next
    start if the daemon is killed. A changed file is replaced: its other names (hard links) keep the old
    content, and open handles the old file. It keeps its permission bits and owner.
    """

    edits: Annotated[
        list[WriteEdit | RemoveEdit],
        Meta(
            min_length=1,
            max_length=MAX_EDITS,
            extra={"error": f"`edits` has {{count}} edits: 1 to {MAX_EDITS} are taken at a time"},
        ),
    ]
    """The edits: 1 to 10000, at most one per path. A folder created by one exists for the following ones."""


class PutEntry(Params):
    """A directory or a small file to create."""

    path: PathUri
    """The full path; links are followed. The folder above it must exist, or be an earlier entry."""

    permissions: Permissions
    """The permission bits, as a number, of a new file, or of a new directory less the daemon's umask."""

    data_base64: Base64Bytes | None = None
    """The whole content of a file, which may be empty; null for a directory. An existing directory is left as
    it is."""

    sha256: Sha256 | None = None
    """The SHA-256 of the content in 64 hexadecimal digits. The daemon reads the new file again before the
    file gets its name, and discards it if its content differs; null skips that."""

    modified_at_ns: Nanoseconds | None = None
    """The time of the last change of a file, in nanoseconds since 1970; null for now."""

    accessed_at_ns: Nanoseconds | None = None
    """The time of the last access of a file, in nanoseconds since 1970; null for now."""


class PutFilesParams(_Sandboxed):
    """Create directories and small files, or replace files, one after the other, in the given order.

    Each file has all of its new content, or is as it was before, as with `fs/install`, which also says when a
    file is written in place. If an entry fails, the others are carried out all the same. The request may be
    repeated.
    """

    entries: Annotated[
        list[PutEntry],
        Meta(
            min_length=1,
            max_length=MAX_BATCH_ENTRIES,
            extra={"error": f"`entries` has {{count}} entries: 1 to {MAX_BATCH_ENTRIES} are taken at a time"},
        ),
    ]
    """The entries: 1 to 1000, with at most 4194304 bytes of content in total."""

    keep_mode: bool = False
    """Whether an existing file keeps its permission bits, as with cp(1)."""


class GetFilesParams(_Sandboxed):
    """Describe several paths, and read those of them that are small files; links are followed."""

    paths: Annotated[
        list[PathUri],
        Meta(
            min_length=1,
            max_length=MAX_BATCH_ENTRIES,
            extra={"error": f"`paths` has {{count}} paths: 1 to {MAX_BATCH_ENTRIES} are taken at a time"},
        ),
    ]
    """The paths: 1 to 1000."""

    max_bytes: Annotated[U64, stated(minimum=0, maximum=MAX_BATCH_BYTES)] = MAX_BATCH_BYTES
    """How many bytes of content the result may have in total: at most 4194304. A file that is larger than the
    rest is described only."""


class WalkOptions(Params):
    """The limits of a walk."""

    max_depth: Annotated[U64, stated(maximum=MAX_WALK_DEPTH)]
    """How many levels below the root's children are listed: 0 gives the children only. At most 64."""

    max_directories: Annotated[U64, stated(minimum=1, maximum=MAX_WALK_DIRECTORIES)]
    """How many directories may be opened, including the root: 1 to 10000."""

    max_entries: Annotated[U64, stated(minimum=1, maximum=MAX_WALK_ENTRIES)]
    """The walk ends after so many entries: 1 to 50000."""

    follow_directory_symlinks: bool
    """Whether links to directories are entered; each real directory is entered only once."""

    prune_hidden_directories: bool = False
    """Whether directories whose names begin with a dot are listed without being entered."""


class WalkParams(PathParams):
    """List files and directories below a root, breadth first.

    Names are sorted by their bytes. The root itself and special files are not listed. A root that is not
    a directory has no entries.
    """

    options: WalkOptions
    """The limits of the walk, and the directories that it enters."""


class OpenParams(_Sandboxed):
    """Open a file for reading or writing in blocks.

    The handle belongs to the connection, which may have 128, and stays valid if its file is renamed or
    removed.
    """

    extension_members = frozenset({"permissions"})

    handle_id: Annotated[str, stated(maxLength=MAX_HANDLE_ID_BYTES)]
    """The client's name for the handle: at most 32 bytes of UTF-8, not in use on this connection."""

    path: PathUri
    """The file to open; links are followed."""

    mode: Literal["read", "replace"] = "read"
    """`read` opens an existing regular file; `replace` creates a file, or truncates it at once."""

    permissions: Permissions | None = None
    """The permission bits of a file that `replace` creates, as a number, without the bits of the daemon's
    umask. Null for 0666."""


class _HandleParams(_Sandboxed, kw_only=True):
    sandbox: SandboxContext | None = None
    """If it limits files, the handle must have been opened with the same limits."""


class ReadBlockParams(_HandleParams):
    """Read a block of an open file at an offset.

    A failed system call closes the handle, such as reading from a handle for writing; a refused argument
    does not.
    """

    handle_id: str
    """The `handleId` of the `fs/open`."""

    offset: U64
    """The start of the block, in bytes from the beginning of the file."""

    len: Annotated[U64, stated(minimum=1, maximum=MAX_BLOCK_BYTES)]
    """How many bytes to read: 1 to 1048576."""


class WriteBlockParams(_HandleParams):
    """Write a block to an open file at an offset.

    All bytes are written, or there is an error. A gap before the offset reads as zeros.
    """

    handle_id: str
    """The handle, opened with the mode `replace`."""

    offset: U64
    """The start of the block, in bytes from the beginning; the block must end before 2^63."""

    chunk: Base64Bytes
    """The bytes to write: 1 to 1048576."""


class CloseParams(Params):
    """Close a handle. It is no error if the handle is not open."""

    handle_id: str
    """The `handleId` of the `fs/open`."""


class WatchMissingParams(Params):
    """Send an event once when a missing path appears, or when a present one disappears.

    The event `fs/missingChanged` is also sent if a missing folder above one of the paths appears. A
    connection has one watch: a new watch with a greater id ends the previous one.
    """

    watch_id: U64
    """The client's number for the watch, greater than all earlier ones of this connection."""

    missing: list[PathUri]
    """The missing paths to watch: 1 to 64."""

    present: PathUri | None = None
    """An existing path whose disappearance is reported, too; null for none."""


class Empty(TypedDict):
    """Success, without further information."""


class PutResult(TypedDict):
    """The file or copy is at its destination."""

    inPlace: NotRequired[Annotated[bool, EXTENSION]]
    """Whether the existing file could not be replaced, and was written in place."""


class EntryError(TypedDict):
    """Why one entry of several failed."""

    code: int
    """The number that a request for this entry alone would be answered with."""

    message: str
    """A sentence for people; for a failed system call the operating system's reason with its number."""


class PutOutcome(TypedDict):
    """What became of one entry. Without `error`, the file or directory is there."""

    inPlace: NotRequired[bool]
    """Whether an existing file could not be replaced, and was written in place; only for a file."""

    error: NotRequired[EntryError]
    """Why there is no such file or directory; a file that existed before is unchanged."""


class PutFilesResult(TypedDict):
    """The batch was carried out, apart from the entries with an `error`."""

    entries: list[PutOutcome]
    """What became of each entry, in their order."""


class FoundFile(TypedDict):
    """One path, as `fs/getMetadata` describes it, or the `error` alone."""

    isDirectory: NotRequired[bool]
    """Whether it is a directory."""

    isFile: NotRequired[bool]
    """Whether it is a regular file."""

    isSymlink: NotRequired[bool]
    """Whether the path itself is a symbolic link."""

    size: NotRequired[U64]
    """The size in bytes."""

    permissions: NotRequired[int]
    """The permission bits as a number, including the set-id and sticky bits."""

    modifiedAtNs: NotRequired[int]
    """The time of the last change of the content, in nanoseconds since 1970."""

    accessedAtNs: NotRequired[int]
    """The time of the last access, in nanoseconds since 1970."""

    dataBase64: NotRequired[WrittenBase64]
    """The content of a regular file, up to the size that it had when it was opened. Absent if it does not
    fit, or if the file shrank meanwhile."""

    sha256: NotRequired[Annotated[str, stated(pattern="^[0-9a-f]{64}$")]]
    """The SHA-256 of as many bytes, read a second time: another one than that of `dataBase64` if the file was
    changed meanwhile. For a file that reports no size, that of `dataBase64`."""

    error: NotRequired[EntryError]
    """Why the path cannot be described or read."""


class GetFilesResult(TypedDict):
    """The paths, and the contents that fit."""

    entries: list[FoundFile]
    """Each path, in their order."""


class ReadFileResult(TypedDict):
    """A whole file."""

    dataBase64: WrittenBase64
    """The content of the file."""


class DigestResult(TypedDict):
    """The digest of a file, at the time of reading."""

    sha256: Annotated[str, stated(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 in 64 hexadecimal digits."""

    size: U64
    """How many bytes were read."""


class AppliedEdit(TypedDict):
    """The result of an edit."""

    path: WrittenUri
    """The path of the edit."""

    sha256: Annotated[str, stated(pattern="^[0-9a-f]{64}$")] | None
    """The SHA-256 of the file in 64 hexadecimal digits; null if the file was removed."""


class ApplyEditsResult(TypedDict):
    """All edits were carried out."""

    edits: list[AppliedEdit]
    """The result of each edit, in their order."""


class Metadata(TypedDict):
    """The metadata of a path. For a link, all members but `isSymlink` describe its target."""

    isDirectory: bool
    """Whether it is a directory."""

    isFile: bool
    """Whether it is a regular file. A fifo, a socket and a device are neither."""

    isSymlink: bool
    """Whether the path itself is a symbolic link."""

    size: U64
    """The size in bytes."""

    createdAtMs: int
    """The time of creation, in whole milliseconds since 1970; 0 if it is not known."""

    modifiedAtMs: int
    """The time of the last change of the content, in whole milliseconds since 1970."""

    permissions: NotRequired[Annotated[int, EXTENSION]]
    """The permission bits as a number, including the set-id and sticky bits."""

    modifiedAtNs: NotRequired[Annotated[int, EXTENSION]]
    """The same time as `modifiedAtMs` in nanoseconds, negative before 1970."""

    accessedAtNs: NotRequired[Annotated[int, EXTENSION]]
    """The time of the last access, in nanoseconds since 1970."""


class CanonicalPath(TypedDict):
    """The path without links."""

    path: WrittenUri
    """The path with every link resolved."""


class DirectoryEntry(TypedDict):
    """One name in a directory. For a link, the flags describe its target."""

    fileName: str
    """The name without its folder; bytes that are not UTF-8 are replaced by U+FFFD."""

    isDirectory: bool
    """Whether it is a directory."""

    isFile: bool
    """Whether it is a regular file."""


class ReadDirectoryResult(TypedDict):
    """The names in a directory."""

    entries: list[DirectoryEntry]
    """All names but `.` and `..`, in no order."""


class WalkEntry(TypedDict):
    """One file or directory below the root of a walk."""

    path: WrittenUri
    """The path, with links that were followed."""

    kind: Literal["file", "directory"]
    """The kind of the entry; a followed link to a directory counts as `directory`."""


class WalkFailure(TypedDict):
    """A directory that could not be read."""

    path: WrittenUri
    """The path of the directory."""

    message: str
    """The operating system's reason, with its number."""


class WalkResult(TypedDict):
    """The result of a walk."""

    entries: list[WalkEntry]
    """Files and directories, breadth first, including directories that could not be read."""

    errors: list[WalkFailure]
    """The directories that could not be read; the walk continued without them."""

    truncated: bool
    """Whether `maxDirectories` or `maxEntries` ended the walk; the depth does not count."""


class OpenResult(TypedDict):
    """The handle is open."""

    handleId: str
    """The client's name for the handle."""


class ReadBlockResult(TypedDict):
    """A block of a file."""

    chunk: WrittenBase64
    """The bytes; empty at and after the end of the file."""

    eof: bool
    """Whether the block has fewer bytes than requested; false if it ends exactly at the end of the file."""


class WatchMissingResult(TypedDict):
    """Whether the watch is active."""

    watching: bool
    """False if there is nothing to wait for: a path exists already or is not accessible, `present` does
    not exist, `missing` has no path or more than 64, or `watchId` is too low."""


class MissingChangedEvent(TypedDict):
    """A watch of `fs/watchMissing` has detected a change, and has ended.

    Sent at most once for each watch.
    """

    watchId: U64
    """The number of the watch."""
