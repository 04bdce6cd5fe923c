"""`fs/watch`: the changes below a path as a numbered log (`docs/protocol.md`, "Watches")."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from execprotocol.filesystem import PathParams
from execprotocol.limits import MAX_WATCH_CHANGES, MAX_WATCH_ID_BYTES
from execprotocol.model import U64, Params, WrittenUri, stated

WatchId = Annotated[str, stated(minLength=1, maxLength=MAX_WATCH_ID_BYTES)]

EndReason = Literal["rootRemoved", "watchLimit", "tooManyEntries", "failed"]
"""Why a watch ended: the root was removed, renamed or unmounted; a limit of inotify; more entries than a
polled watch looks at; its program ended."""


class WatchParams(PathParams):
    """Watch a file or a directory, by default with everything below it, until the session ends.

    A change after the answer is never missed. Changes are numbered and logged in the session; they are
    sent as `fs/changed`, and `fs/watchRead` reads them after a cursor. Links below the root are not followed.
    """

    # Bounded by the handler, in bytes of UTF-8.
    watch_id: WatchId
    """The client's name for the watch, 1 to 64 bytes, unique in the session."""

    recursive: bool = True
    """Whether directories below the root are watched, too."""

    ignore_rules: bool = True
    """Whether paths are left out that `.gitignore`, `.ignore`, `.rgignore` and `.git/info/exclude` ignore: at
    or below the root, and above it up to the repository's own folder. A changed file at or below the root
    takes effect, with a `gap` for its folder."""

    exclude_dirs: list[str] = []
    """Names of directories that are left out at any depth, such as `.git` and `node_modules`."""

    if_exists: Literal["fail", "attach"] = "fail"
    """`attach` answers with the state of a watch of that name and the same parameters; others are refused."""


class WatchResult(TypedDict):
    """The watch is active."""

    watchId: str
    """The client's name for the watch."""

    mode: Literal["inotify", "polling"]
    """`polling` on network mounts and FUSE: the tree is listed every two seconds, at most 50,000 entries."""

    nextSeq: U64
    """The number that the next change will have; 1 for a new watch."""


_EARLIER = "The earlier path of a `renamed` entry. A renamed directory stands for everything below it."

# `from` is a keyword of Python.
_From = TypedDict("_From", {"from": NotRequired[Annotated[WrittenUri, stated(description=_EARLIER)]]})


class Change(_From):
    """One change at or below the root of a watch."""

    kind: Literal["created", "modified", "removed", "renamed", "gap"]
    """`modified` is a change of the content or of the metadata. `gap` means that changes were lost: look
    again at everything at and below `path`. An entry may be `created` again, or `removed` without having been
    reported before: a change says what is true after it."""

    path: WrittenUri
    """The path below the root of the watch, as it was requested."""

    isDirectory: bool
    """Whether it is or was a directory itself; false for a link to one."""


class ChangedEvent(TypedDict):
    """Changes of a watch, each sent once. After a resume, events continue with those not sent yet."""

    watchId: str
    """The client's name for the watch."""

    firstSeq: U64
    """The number of the first change; the others follow without gaps."""

    changes: list[Change]
    """The changes, oldest first. Only the last event of a watch, the one with `ended`, may have none."""

    ended: NotRequired[EndReason]
    """Why the watch has ended; absent while it is active. No event follows."""

    message: NotRequired[str]
    """For people: why it has ended, and the way out."""


class WatchReadParams(Params):
    """Read the logged changes after a cursor.

    The answer is sent at once if there are changes, or if the watch has ended. At most 65,536 changes and
    16 MiB of the log are kept. For a cursor before them, the first change is a `gap` for the root.
    """

    watch_id: WatchId
    """The `watchId` of the `fs/watch`."""

    after_seq: U64 = 0
    """The last number that the client has; 0 reads from the beginning."""

    max_changes: Annotated[int, Meta(ge=1, le=MAX_WATCH_CHANGES)] = 1000
    """The maximum of changes in the answer. It also has at most 4 MiB of them."""

    wait_ms: U64 | None = None
    """How long to wait for a change, in milliseconds; null or 0 answers at once."""


class WatchReadResult(TypedDict):
    """A page of changes, and the state of the watch."""

    firstSeq: U64
    """The number of the first change; the others follow without gaps. `nextSeq` if there are none."""

    changes: list[Change]
    """The changes after the cursor, oldest first."""

    nextSeq: U64
    """The next number: continue with `afterSeq` one below it."""

    ended: EndReason | None
    """Why the watch has ended and all its changes have been read; null otherwise."""

    message: NotRequired[str]
    """For people, with `ended`: why, and the way out."""


class UnwatchParams(Params):
    """End a watch and forget its changes. It is no error if there is none of that name."""

    watch_id: WatchId
    """The `watchId` of the `fs/watch`."""
