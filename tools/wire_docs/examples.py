"""Examples of requests and their results, for the OpenRPC document and the reference.

Together and in this order they are one conversation of a connection that did not ask for extension
members: `tests/integration/schemas/test_examples.py` holds it with a daemon and compares the results.
Methods whose results differ from host to host have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FOLDER = "file:///tmp/example"
"""Where the conversation takes place; in the beginning it is empty."""

VOLATILE = frozenset({"createdAtMs", "modifiedAtMs"})
"""Members whose values are different each time."""

_SRC = f"{FOLDER}/src"
_FILE = f"{FOLDER}/src/hello.txt"
_COPY = f"{FOLDER}/src/copy.txt"
_RENAMED = f"{FOLDER}/src/renamed.txt"
_HELLO = "aGVsbG8K"


@dataclass(frozen=True, slots=True)
class Example:
    """One request and its result."""

    method: str
    title: str
    params: dict[str, Any]
    result: dict[str, Any]


EXAMPLES = (
    Example("environment/status", "see whether the executor answers", {}, {"status": "ready"}),
    Example("capabilityRoots/discoverV1", "look in no folder", {"roots": []}, {"roots": []}),
    Example(
        "capabilities/discoverV2",
        "look for what applies to a folder",
        {"cwd": FOLDER},
        {"plugins": [], "skills": [], "warnings": []},
    ),
    Example(
        "fs/watchMissing",
        "wait for a file that is not there yet",
        {"watchId": 1, "missing": [f"{FOLDER}/done"]},
        {"watching": True},
    ),
    Example(
        "fs/watch",
        "watch a tree, without what git ignores",
        {"watchId": "w", "path": FOLDER, "excludeDirs": [".git"]},
        {"watchId": "w", "mode": "inotify", "nextSeq": 1},
    ),
    Example(
        "fs/watchRead",
        "see that nothing has changed yet",
        {"watchId": "w", "afterSeq": 0},
        {"firstSeq": 1, "changes": [], "nextSeq": 1, "ended": None},
    ),
    Example("fs/unwatch", "end the watch", {"watchId": "w"}, {}),
    Example("fs/createDirectory", "make a folder with its parents", {"path": _SRC}, {}),
    Example("fs/writeFile", "write `hello` and a newline", {"path": _FILE, "dataBase64": _HELLO}, {}),
    Example("fs/readFile", "read it again", {"path": _FILE}, {"dataBase64": _HELLO}),
    Example(
        "fs/getMetadata",
        "look at a file",
        {"path": _FILE},
        {
            "isDirectory": False,
            "isFile": True,
            "isSymlink": False,
            "size": 6,
            "createdAtMs": 0,
            "modifiedAtMs": 1767225600000,
        },
    ),
    Example("fs/canonicalize", "resolve a path", {"path": f"{_SRC}/../src/./hello.txt"}, {"path": _FILE}),
    Example(
        "fs/search",
        "find the lines with a text, and a name to end that by",
        {"path": FOLDER, "pattern": "hell", "globs": ["*.txt"], "searchId": "s"},
        {
            "files": [{"path": _FILE, "matches": [{"line": 1, "ranges": [[0, 4]], "text": "hello"}]}],
            "truncated": None,
            "cursor": None,
            "unread": [],
            "searchedFiles": 1,
        },
    ),
    Example("fs/endSearch", "end it, though it is complete", {"searchId": "s"}, {}),
    Example(
        "fs/glob",
        "find files by name",
        {"path": FOLDER, "globs": ["src/**/*.txt"]},
        {"paths": [_FILE], "truncated": None, "cursor": None, "unread": []},
    ),
    Example(
        "fs/readDirectory",
        "list a folder",
        {"path": _SRC},
        {"entries": [{"fileName": "hello.txt", "isDirectory": False, "isFile": True}]},
    ),
    Example(
        "fs/copy", "copy a file", {"sourcePath": _FILE, "destinationPath": _COPY, "recursive": False}, {}
    ),
    Example(
        "fs/walk",
        "list a tree",
        {
            "path": FOLDER,
            "options": {
                "maxDepth": 8,
                "maxDirectories": 100,
                "maxEntries": 1000,
                "followDirectorySymlinks": False,
            },
        },
        {
            "entries": [
                {"path": _SRC, "kind": "directory"},
                {"path": _COPY, "kind": "file"},
                {"path": _FILE, "kind": "file"},
            ],
            "errors": [],
            "truncated": False,
        },
    ),
    Example("fs/open", "open a file for reading", {"handleId": "in", "path": _FILE}, {"handleId": "in"}),
    Example(
        "fs/readBlock",
        "read up to 1 KiB from its beginning",
        {"handleId": "in", "offset": 0, "len": 1024},
        {"chunk": _HELLO, "eof": True},
    ),
    Example(
        "fs/open",
        "empty a file and open it for writing",
        {"handleId": "out", "path": _COPY, "mode": "replace"},
        {"handleId": "out"},
    ),
    Example("fs/writeBlock", "write at its beginning", {"handleId": "out", "offset": 0, "chunk": _HELLO}, {}),
    Example("fs/close", "close it", {"handleId": "out"}, {}),
    Example(
        "fs/digest",
        "check that it came whole",
        {"path": _COPY},
        {"sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", "size": 6},
    ),
    Example(
        "fs/setMetadata",
        "make it readable by its owner only, and as old as it should be",
        {"path": _COPY, "permissions": 384, "modifiedAtNs": 1700000000123456789},
        {},
    ),
    Example(
        "fs/rename",
        "put it in its place, where nothing may be",
        {"sourcePath": _COPY, "destinationPath": _RENAMED, "overwrite": False},
        {},
    ),
    Example(
        "fs/applyEdits",
        "change a file that must not have been changed meanwhile, and make another one with its folder, or "
        "do neither",
        {
            "edits": [
                {
                    "op": "write",
                    "path": _FILE,
                    "dataBase64": "SGVsbG8K",
                    "expected": {
                        "sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
                    },
                },
                {
                    "op": "write",
                    "path": f"{FOLDER}/docs/hello.txt",
                    "dataBase64": _HELLO,
                    "expected": {"absent": True},
                    "createParents": True,
                },
            ]
        },
        {
            "edits": [
                {
                    "path": _FILE,
                    "sha256": "66a045b452102c59d840ec097d59d9467e13a3f34f6494e539ffd32c1bb35f18",
                },
                {
                    "path": f"{FOLDER}/docs/hello.txt",
                    "sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
                },
            ]
        },
    ),
    Example(
        "fs/install",
        "move a finished file over another one",
        {"sourcePath": _RENAMED, "destinationPath": _FILE, "permissions": 420},
        {},
    ),
    Example(
        "fs/putFiles",
        "make a folder and a file in it, and try a file in a folder that does not exist",
        {
            "entries": [
                {"path": f"{FOLDER}/batch", "permissions": 493},
                {"path": f"{FOLDER}/batch/hello.txt", "permissions": 420, "dataBase64": _HELLO},
                {"path": f"{FOLDER}/no/hello.txt", "permissions": 420, "dataBase64": _HELLO},
            ]
        },
        {
            "entries": [
                {"inPlace": False},
                {"inPlace": False},
                {"error": {"code": -32004, "message": "No such file or directory (os error 2)"}},
            ]
        },
    ),
    Example(
        "fs/getFiles",
        "look for a file that does not exist",
        {"paths": [f"{FOLDER}/no/hello.txt"]},
        {"entries": [{"error": {"code": -32004, "message": "No such file or directory (os error 2)"}}]},
    ),
    Example("fs/remove", "remove a file", {"path": _FILE}, {}),
    Example(
        "process/start",
        "start a program that can be written to",
        {
            "processId": "1",
            "argv": ["cat"],
            "cwd": FOLDER,
            "env": {"PATH": "/usr/bin:/bin"},
            "tty": False,
            "pipeStdin": True,
        },
        {"processId": "1", "sandboxType": "none"},
    ),
    Example(
        "process/write",
        "write a line to it",
        {"processId": "1", "chunk": _HELLO, "writeId": "1"},
        {"status": "accepted"},
    ),
    Example(
        "process/read",
        "wait for its output, at most 5 seconds",
        {"processId": "1", "afterSeq": 0, "waitMs": 5000},
        {
            "chunks": [{"seq": 1, "stream": "stdout", "chunk": _HELLO}],
            "nextSeq": 2,
            "exited": False,
            "exitCode": None,
            "closed": False,
            "failure": None,
            "sandboxDenied": False,
        },
    ),
    Example("process/closeStdin", "end its input", {"processId": "1"}, {"status": "accepted"}),
    Example(
        "process/start",
        "start a shell on a terminal",
        {
            "processId": "2",
            "argv": ["/bin/sh"],
            "cwd": FOLDER,
            "env": {},
            "tty": True,
            "size": {"rows": 40, "cols": 120},
        },
        {"processId": "2", "sandboxType": "none"},
    ),
    Example(
        "process/resize",
        "make its terminal wider",
        {"processId": "2", "size": {"rows": 40, "cols": 160}},
        {"running": True},
    ),
    Example("process/terminate", "kill it", {"processId": "2"}, {"running": True}),
    Example(
        "process/signal",
        "hang up on whatever came of it",
        {"processId": "2", "signal": "SIGHUP", "scope": "tree"},
        {},
    ),
    Example(
        "process/unsubscribe",
        "follow a process of another session no longer, if it was followed",
        {"sessionId": "00000000-0000-4000-8000-000000000000", "processId": "1"},
        {},
    ),
    Example("process/signal", "interrupt what may be left", {"processId": "1", "signal": "interrupt"}, {}),
    Example(
        "session/setTtl",
        "have the session kept for 8 hours without a connection",
        {"ttlMs": 28800000},
        {"sessionTtlMs": 28800000},
    ),
    Example(
        "process/listForgotten", "ask for a process that never was", {"processId": "2"}, {"processes": []}
    ),
    Example("port/list", "see that nothing of the session listens on a port", {}, {"ports": []}),
    Example("session/end", "be done", {}, {}),
)


def examples_of(method: str) -> list[Example]:
    """The examples of one method."""
    return [example for example in EXAMPLES if example.method == method]
