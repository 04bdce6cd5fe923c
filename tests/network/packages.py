"""The files of the web servers: an index of Python, a registry of npm, a repository of git."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "demo-1.0-py3-none-any.whl"
TARBALL = "demo-1.0.0.tgz"
CONTENT = "of the package"


def site() -> dict[str, bytes]:
    """The files by their paths."""
    return {
        "/simple/demo/": f'<html><body><a href="/{WHEEL}">{WHEEL}</a></body></html>'.encode(),
        f"/{WHEEL}": _wheel(),
        f"/demo/-/{TARBALL}": _tarball(),
        **_repository(),
    }


def answer(files: dict[str, bytes], target: str, host: str) -> bytes | None:
    """The file at the target of a request; null if there is none."""
    path = target.partition("?")[0]
    return _packument(files, host) if path == "/demo" else files.get(path)


def _wheel() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("demo.py", f"content = {CONTENT!r}\n")
        file.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        file.writestr(
            "demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("demo-1.0.dist-info/RECORD", "")
    return data.getvalue()


def _tarball() -> bytes:
    data = io.BytesIO()
    files = {"package.json": json.dumps({"name": "demo", "version": "1.0.0"}), "index.js": f"// {CONTENT}\n"}
    with tarfile.open(fileobj=data, mode="w:gz") as file:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


def _packument(files: dict[str, bytes], host: str) -> bytes:
    tarball = files[f"/demo/-/{TARBALL}"]
    dist = {
        "tarball": f"https://{host}/demo/-/{TARBALL}",
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode(),
    }
    version = {"name": "demo", "version": "1.0.0", "dist": dist}
    return json.dumps(
        {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    ).encode()


def _repository() -> dict[str, bytes]:
    """A repository as any web server can serve it."""
    person = {
        f"GIT_{role}_{what}": "tester@ok.test"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    with tempfile.TemporaryDirectory() as folder:
        env = {"PATH": os.environ["PATH"], "HOME": folder, **person}
        Path(folder, "file").write_text(f"{CONTENT}\n")
        for command in ("init -q -b main .", "add file", "commit -q -m one", "update-server-info"):
            subprocess.run(["git", *command.split()], cwd=folder, env=env, check=True)
        top = Path(folder, ".git")
        files = (path for path in top.rglob("*") if path.is_file() and "hooks" not in path.parts)
        return {f"/demo.git/{path.relative_to(top)}": path.read_bytes() for path in files}
