"""`fs/*`: the executor's file system (`docs/protocol.md`, "File system")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias, TypedDict

from msgspec import Meta, ValidationError

from execprotocol.limits import (
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


# By position `sandbox` comes last, whatever members a method adds to it: those of `kw_only` do.
class _Sandboxed(Params, kw_only=True):
    sandbox: SandboxContext | None = None
    """What the request may touch; null means no limit."""


class PathParams(_Sandboxed):
    """A request about one path."""

    path: PathUri
    """The path that is meant."""


class ReadFileParams(PathParams):
    """Read a whole file; links are followed.

    At most 512 MiB; larger files are read by `fs/open` and `fs/readBlock`, and so are those whose
    reply would not fit into a WebSocket message of 64 MiB. A directory, a fifo and a device are
    refused. A file that reports no size, as those of `/proc`, is read to its end.
    """


class WriteFileParams(PathParams):
    """Create a file, or replace the content of one in place.

    Inode, mode and links of a file that is there stay; a new file gets the mode 0666 without the
    bits of the daemon's umask, and its folder must exist. On a full disk the old content stays.
    """

    # Decoded by the handler: a fault in it is -32600 here, and the text may be as large as a message.
    data_base64: Base64Text
    """The new content of the file; it may be empty."""


class CreateDirectoryParams(PathParams):
    """Make a directory, by default with its parents."""

    extension_members = frozenset({"permissions"})

    recursive: bool = True
    """Whether missing parents are made too and a directory that is there already is no error."""

    permissions: Permissions | None = None
    """The permission bits of the directory if it is made, as a number; the daemon's umask takes bits away.
    Null for 0777, which missing parents get in any case."""


class GetMetadataParams(PathParams):
    """Say what a path is: its kind, size and times.

    Links are followed, so a dangling one is not found.
    """


class CanonicalizeParams(PathParams):
    """Resolve all links of a path, which must exist and may be of any kind."""


class ReadDirectoryParams(PathParams):
    """List the names in one directory, in no order.

    Dangling links are left out. What is neither a directory nor a file is listed with both flags
    false.
    """


class RemoveParams(PathParams):
    """Remove a file, a link or a directory; a link is removed itself, never its target."""

    recursive: bool = True
    """Whether a directory is removed with all its content; otherwise only an empty one goes."""

    force: bool = True
    """Whether it is no error that there is nothing to remove. Other errors are still told."""


class CopyParams(_Sandboxed):
    """Copy a file, a link or a tree; whole or not at all.

    A file is copied with its permission bits over one that is there; the folder above it must
    exist. A link is copied as a link. A directory is copied to a place that is free, missing
    parents being made; special files in it are left out. A file that grows is copied as large as it was when
    it was opened.
    """

    extension_members = frozenset({"keep_mode", "preserve_times"})

    source_path: PathUri
    """What to copy: a regular file, a link or a directory."""

    destination_path: PathUri
    """The full path of the copy, never just the folder that it is put in."""

    recursive: bool
    """Whether a directory may be copied; without it a directory is refused."""

    keep_mode: bool = False
    """Whether a file that is there keeps its permission bits, and new files and directories get those of
    their source without the set-id and sticky bits, as with cp(1)."""

    preserve_times: bool = False
    """Whether copies get the times of their source, those of the last access and of the last change."""


class SetMetadataParams(PathParams):
    """Set the permission bits and the times of a file or a directory; links are followed."""

    permissions: Permissions | None = None
    """The permission bits as a number, such as 420 for 0644; null leaves them."""

    modified_at_ns: Nanoseconds | None = None
    """The time of the last change of the content, in nanoseconds since 1970; null leaves it."""

    accessed_at_ns: Nanoseconds | None = None
    """The time of the last access, in nanoseconds since 1970; null leaves it."""


class InstallParams(_Sandboxed):
    """Move a finished file to its place; the place has all of the new content, or all of the old one.

    The file is renamed. One that is replaced passes on its owner, access list, extended attributes and
    permission bits. A place that cannot be renamed to is written in place: a mount point, a file in a folder
    that takes no new names or on another file system, a file of another owner. Then a failure puts the old
    content back where there is room to keep it meanwhile, and only a kill leaves a part.
    """

    source_path: PathUri
    """The finished file: a regular one, no link. It is gone afterwards."""

    destination_path: PathUri
    """The full path of its place; links are followed. The folder above it must exist."""

    permissions: Permissions | None = None
    """The permission bits as a number; null for those of the file that is replaced, else of the source."""

    modified_at_ns: Nanoseconds | None = None
    """The time of its last change, in nanoseconds since 1970; null for that of the source."""

    accessed_at_ns: Nanoseconds | None = None
    """The time of its last access, in nanoseconds since 1970; null for that of the source."""


class RenameParams(_Sandboxed):
    """Rename a file, a link or a directory in one step: at no time are both names there, or neither.

    Open handles stay with their file, and a link is renamed itself, never its target. Both paths have to be
    on one file system. With two names of one file nothing happens.
    """

    source_path: PathUri
    """What to rename."""

    destination_path: PathUri
    """The full new path, never just the folder that it is put in; the folder above it must exist."""

    overwrite: bool = True
    """Whether a file in the place of a file, or an empty directory in that of a directory, is replaced;
    otherwise anything in the place is an error."""


class DigestParams(PathParams):
    """Read a whole regular file, of any size, and give its SHA-256; links are followed."""

    extension_members = frozenset({"size"})

    size: U64 | None = None
    """How many bytes from its beginning to read, fewer where it ends; null for all. It is meant for files
    that grow."""


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
    """A regular file with this content, seen through links."""

    sha256: Sha256
    """The SHA-256 of the content in 64 hexadecimal digits, as `fs/digest` gives it."""


class ExpectedAbsent(Params):
    """Nothing, not even a folder; a link that leads nowhere counts as nothing."""

    absent: AlwaysTrue
    """Always true; there is no other value."""


def _expected(value: Any) -> ExpectedContent | ExpectedAbsent:
    """The models have no member that names them: the first that takes the value is meant."""
    try:
        return decode(ExpectedContent, value)
    except ValidationError:
        return decode(ExpectedAbsent, value)


if TYPE_CHECKING:
    Expected: TypeAlias = ExpectedContent | ExpectedAbsent
else:
    Expected = wire_type(_expected, ExpectedContent, ExpectedAbsent, anyOf=[ExpectedContent, ExpectedAbsent])


class WriteEdit(Params, tag_field="op", tag="write"):
    """Make a file or give it another content."""

    op: ClassVar[Literal["write"]] = "write"
    """The mark of this kind of edit."""

    path: PathUri
    """The file; links are followed, and stay."""

    # Decoded by the handler, as that of `fs/writeFile`.
    data_base64: Base64Text
    """The new content of the file; it may be empty."""

    expected: Expected | None = None
    """What has to be there now; null for a regular file or nothing."""

    create_parents: bool = False
    """Whether missing folders above the file are made."""

    mode_from: PathUri | None = None
    """A file whose permission bits a new file gets, such as the old place of one that moves; null for 0666
    without the bits of the daemon's umask. A file that is there keeps its own."""


class RemoveEdit(Params, tag_field="op", tag="remove"):
    """Remove a file or a link, never what that leads to. It has to be there, and a directory is refused."""

    op: ClassVar[Literal["remove"]] = "remove"
    """The mark of this kind of edit."""

    path: PathUri
    """What to remove."""

    expected: ExpectedContent | None = None
    """What has to be there now; null for anything but a directory."""


class ApplyEditsParams(_Sandboxed):
    """Change several files as one: all edits are carried out, or none.

    What the edits expect is checked for all of them first. Then all new files are written beside their
    places, and from the moment on at which a record of what is to be done is on the disk it is done, also
    when the daemon is killed: then at its next start. A file that is changed is replaced: other names of it
    (hard links) keep the old content, and open handles the old file. Its permission bits and owner stay.
    """

    edits: Annotated[
        list[WriteEdit | RemoveEdit],
        Meta(
            min_length=1,
            max_length=MAX_EDITS,
            extra={"error": f"`edits` has {{count}} edits: 1 to {MAX_EDITS} are taken at a time"},
        ),
    ]
    """The edits: 1 to 10000, no two of one place. A folder that one makes is there for those behind it."""


class WalkOptions(Params):
    """How far a walk goes."""

    max_depth: Annotated[U64, stated(maximum=MAX_WALK_DEPTH)]
    """How many levels below the root's children are listed: 0 gives the children only. At most 64."""

    max_directories: Annotated[U64, stated(minimum=1, maximum=MAX_WALK_DIRECTORIES)]
    """How many directories may be opened, the root among them: 1 to 10000."""

    max_entries: Annotated[U64, stated(minimum=1, maximum=MAX_WALK_ENTRIES)]
    """After how many entries the walk ends: 1 to 50000."""

    follow_directory_symlinks: bool
    """Whether links to directories are entered; each real directory is entered once only."""

    prune_hidden_directories: bool = False
    """Whether directories whose names begin with a dot are listed without being entered."""


class WalkParams(PathParams):
    """List files and directories below a root, breadth first.

    Names come in the order of their bytes, the root itself is not listed, and what is neither a
    file nor a directory is left out. A root that is no directory gives nothing.
    """

    options: WalkOptions
    """The limits of the walk and what it enters."""


class OpenParams(_Sandboxed):
    """Open a file for reading or writing in blocks.

    The handle belongs to the connection, which may have 128, and stays with its file when that is
    renamed or removed.
    """

    extension_members = frozenset({"permissions"})

    handle_id: Annotated[str, stated(maxLength=MAX_HANDLE_ID_BYTES)]
    """The client's own name for the handle: at most 32 bytes of UTF-8, not in use on this connection."""

    path: PathUri
    """The file to open; links are followed."""

    mode: Literal["read", "replace"] = "read"
    """`read` opens a regular file that exists; `replace` makes a file, or empties one at once."""

    permissions: Permissions | None = None
    """The permission bits of a file that `replace` makes, as a number; the daemon's umask takes bits away.
    Null for 0666."""


class _HandleParams(_Sandboxed, kw_only=True):
    sandbox: SandboxContext | None = None
    """If it limits files, the handle must have been opened under the same limits."""


class ReadBlockParams(_HandleParams):
    """Read a block of an open file at an offset.

    A failed system call closes the handle, reading from one that is open for writing among them;
    an argument that is refused does not.
    """

    handle_id: str
    """The handle, as it was named in `fs/open`."""

    offset: U64
    """Where the block begins, in bytes from the beginning of the file."""

    len: Annotated[U64, stated(minimum=1, maximum=MAX_BLOCK_BYTES)]
    """How many bytes to read: 1 to 1048576."""


class WriteBlockParams(_HandleParams):
    """Write a block to an open file at an offset.

    All bytes are written, or there is an error. A gap that the offset leaves reads as zeros.
    """

    handle_id: str
    """The handle, opened with the mode `replace`."""

    offset: U64
    """Where to write, in bytes from the beginning; the block must end before 2^63."""

    chunk: Base64Bytes
    """The bytes to write: 1 to 1048576."""


class CloseParams(Params):
    """Close a handle; closing one that is not open is no error."""

    handle_id: str
    """The handle, as it was named in `fs/open`."""


class WatchMissingParams(Params):
    """Tell once when an absent path appears, or when a present one is gone.

    The news is the event `fs/missingChanged`. It also comes when a missing folder above one of the
    paths appears. A connection has one watch: a new one with a greater id ends the one before.
    """

    watch_id: U64
    """The client's number for the watch; it must be greater than all before it on this connection."""

    missing: list[PathUri]
    """The absent paths to watch: 1 to 64."""

    present: PathUri | None = None
    """A path that exists and whose disappearance is told too; null for none."""


class Empty(TypedDict):
    """Done; there is nothing more to say."""


class PutResult(TypedDict):
    """The copy or the file is in its place."""

    inPlace: NotRequired[Annotated[bool, EXTENSION]]
    """Whether a file that is there could not be replaced, and was written in place."""


class ReadFileResult(TypedDict):
    """A whole file."""

    dataBase64: WrittenBase64
    """The content of the file."""


class DigestResult(TypedDict):
    """The digest of a file, as its content was while it was read."""

    sha256: Annotated[str, stated(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 in 64 hexadecimal digits."""

    size: U64
    """How many bytes were read."""


class AppliedEdit(TypedDict):
    """What an edit has made of its path."""

    path: WrittenUri
    """The path, as the edit named it."""

    sha256: Annotated[str, stated(pattern="^[0-9a-f]{64}$")] | None
    """The SHA-256 of the file in 64 hexadecimal digits; null when it was removed."""


class ApplyEditsResult(TypedDict):
    """All edits are carried out."""

    edits: list[AppliedEdit]
    """What came of each edit, in their order."""


class Metadata(TypedDict):
    """What a path is. All but `isSymlink` speak of a link's target."""

    isDirectory: bool
    """Whether it is a directory."""

    isFile: bool
    """Whether it is a regular file. A fifo, a socket and a device are neither."""

    isSymlink: bool
    """Whether the path itself is a symbolic link."""

    size: U64
    """The size in bytes."""

    createdAtMs: int
    """When it was made, in whole milliseconds since 1970; 0 when that is not known."""

    modifiedAtMs: int
    """When its content last changed, in whole milliseconds since 1970."""

    permissions: NotRequired[Annotated[int, EXTENSION]]
    """The permission bits as a number, the set-id and sticky bits among them."""

    modifiedAtNs: NotRequired[Annotated[int, EXTENSION]]
    """The same time as `modifiedAtMs` in nanoseconds, negative before 1970."""

    accessedAtNs: NotRequired[Annotated[int, EXTENSION]]
    """When it was last read, in nanoseconds since 1970."""


class CanonicalPath(TypedDict):
    """The path without links."""

    path: WrittenUri
    """The path with every link resolved."""


class DirectoryEntry(TypedDict):
    """One name in a directory. The flags speak of a link's target."""

    fileName: str
    """The name without its folder; bytes that are no UTF-8 appear as U+FFFD."""

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
    """The path, through the links on the way to it."""

    kind: Literal["file", "directory"]
    """What it is; a link to a directory that is followed counts as `directory`."""


class WalkFailure(TypedDict):
    """A directory that could not be read."""

    path: WrittenUri
    """The path of the directory."""

    message: str
    """The operating system's reason, with its number."""


class WalkResult(TypedDict):
    """What a walk found."""

    entries: list[WalkEntry]
    """Files and directories, breadth first; a directory that could not be read is listed too."""

    errors: list[WalkFailure]
    """The directories that could not be read; the walk went on without them."""

    truncated: bool
    """Whether `maxDirectories` or `maxEntries` cut the walk; the depth does not count."""


class OpenResult(TypedDict):
    """The handle is open."""

    handleId: str
    """The handle, as the client named it."""


class ReadBlockResult(TypedDict):
    """A block of a file."""

    chunk: WrittenBase64
    """The bytes that were read; none at or behind the end of the file."""

    eof: bool
    """Whether there were fewer bytes than asked for; a block that just reaches the end says false."""


class WatchMissingResult(TypedDict):
    """Whether the watch stands."""

    watching: bool
    """False when there was nothing to wait for: a path is there already or cannot be looked at,
    `present` is gone, `missing` has no path or more than 64, or `watchId` is too low."""


class MissingChangedEvent(TypedDict):
    """A watch of `fs/watchMissing` saw a change, and is over.

    It comes at most once for each watch.
    """

    watchId: U64
    """The number of the watch."""
