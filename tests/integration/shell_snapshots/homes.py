"""A home folder with a profile, and commands that run with it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.wire import Client, Json, encode


@dataclass(frozen=True)
class Result:
    """What a command did. How long it took and how it was started do not count."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    cause: str | None
    obstacle: str | None = field(compare=False)
    seconds: float = field(compare=False)


class Home:
    """A home folder, and a client whose commands have it."""

    def __init__(self, client: Client, folder: Path, profile: str, name: str = ".bash_profile") -> None:
        self.client = client
        self.folder = folder
        self.file(name, profile)

    def file(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        time.sleep(0.02)  # a profile that has just changed makes no snapshot yet
        return path

    def program(self, name: str, text: str) -> None:
        """Write a program."""
        self.file(name, text).chmod(0o755)

    def run(
        self,
        shell: str,
        script: str,
        *,
        snapshot: bool,
        env: dict[str, str] | None = None,
        typed: bytes | None = None,
        scope: str = "tests",
        **members: Json,
    ) -> Result:
        """Run a script in a login shell, or with a snapshot of one."""
        if snapshot:
            name = shell.rpartition("/")[2]
            members["shellSnapshot"] = {"scopeId": scope, "shell": {"name": name, "path": shell}}
        params = self.client.start_params(
            [shell, "-lc", script, "zero", "a b", "c"],
            pipeStdin=typed is not None,
            **{"cwd": self.folder.as_uri(), **members},
        )
        params["env"] = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8", **(env or {})}
        began = time.monotonic()
        reply = self.client.call("process/start", params)
        process = self.client.process(params["processId"])
        if typed is not None:
            # Without waiting for the answers: the process may have ended already.
            chunk = {"processId": process.id, "chunk": encode(typed), "writeId": "1"}
            self.client.request("process/write", chunk)
            self.client.request("process/closeStdin", {"processId": process.id})
        log = process.wait_closed().log
        exited = next(each for kind, each in log.events if kind == "process/exited")
        return Result(
            bytes(log.streams.get("stdout", b"")),
            bytes(log.streams.get("stderr", b"")),
            log.exit_code,
            exited.get("cause"),
            reply.get("snapshotObstacle"),
            time.monotonic() - began,
        )
