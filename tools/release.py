"""Build a release: `python -m tools.release [OPTIONS] DIST`, or `make release`.

DIST/VERSION gets, from the last commit:

- sdist and wheel of both distributions, checked by twine. The same commit gives the same bytes, in any folder
  and at any time: time stamps are those of the commit, and `constraints.txt` has the version of hatchling;
- the npm package of the TypeScript client, which has one dependency, pinned in it;
- for each distribution with its extras a bill of materials (CycloneDX), whose licences are checked:
  without the extras of integrations, but for that of `execserver mcp`. They bring another project, which its
  user has, and some of those cannot be installed together;
- `RELEASE-NOTES.md`: the section of the version in CHANGELOG.md, with `--unreleased` the section Unreleased;
- `SHA256SUMS` over all of these.

Nothing is published. A work tree with changes, or a version without a section, is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Collection, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from execserver import __version__

NOTES, SUMS = "RELEASE-NOTES.md", "SHA256SUMS"

MASK = 0o022
"""The umask of what is built, as the modes of files are in it."""

COMPATIBLE = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0"),
        *("PSF-2.0", "Python-2.0"),
        "MPL-2.0",  # certifi's list of certificates: the licence covers its own files only
        "License :: OSI Approved :: Apache Software License",
        "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)",
    }
)
"""Licences of work that may be installed beside ours without a condition on ours."""

READ = {"aiofastnet": ["MIT"], "picows": ["MIT"], "protobuf": ["BSD-3-Clause"]}
"""Licences that are in the files of a component only, as read there: its metadata names none."""


class ReleaseError(Exception):
    """Why there is no release; the message says what to do."""


DISTRIBUTIONS = {"execclient": "clients/python", "execserver": "."}
"""Their folders, in the order in which they need each other."""


def section(changelog: str, heading: str) -> str:
    """The text of a section of the changelog.

    Args:
        changelog: the whole file.
        heading: a version, whose section has its date (`## 0.2.0 - 2026-11-26`), or `Unreleased`.

    Raises:
        ReleaseError: there is no such section, or it is empty.
    """
    date = "" if heading == "Unreleased" else r" [-\u2013] \d{4}-\d\d-\d\d"
    found = re.search(
        rf"^## {re.escape(heading)}{date}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise ReleaseError(
            f"CHANGELOG.md has no section for {heading}: rename its heading `## Unreleased` to "
            f"`## {heading} - YYYY-MM-DD`, or rehearse with the option --unreleased"
        )
    if not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md says nothing about {heading}")
    return found[1].strip() + "\n"


def licences(sbom: dict[str, Any]) -> dict[str, list[str]]:
    """The licences of each component, as SPDX expressions where the component has them."""
    return READ | {
        component["name"]: sorted(
            {
                choice.get("expression") or choice["license"].get("id") or choice["license"]["name"]
                for choice in component.get("licenses", [])
            }
        )
        for component in sbom["components"]
        if component["name"] not in READ
    }


def incompatible(sbom: dict[str, Any]) -> dict[str, list[str]]:
    """The components that have a licence outside of `COMPATIBLE`, or none. Of `A OR B` one is enough."""
    return {
        name: found
        for name, found in licences(sbom).items()
        if not found or not all(map(_is_compatible, found))
    }


def _is_compatible(expression: str) -> bool:
    alternatives = [each.split(" AND ") for each in expression.split(" OR ")]
    return expression in COMPATIBLE or any(
        all(part.strip("() ") in COMPATIBLE for part in each) for each in alternatives
    )


class Release:
    """The release of the last commit of a repository."""

    def __init__(self, root: Path, tools: Path, node_modules: Path, folder: Path) -> None:
        """`tools` has the programs twine and cyclonedx-py, `node_modules` the packages that compile the
        TypeScript client; `folder` is empty, for what is made.
        """
        self._root = root
        self._tools = tools
        self._node_modules = node_modules
        self._folder = folder

    def check(self) -> None:
        """Raises `ReleaseError` if the work tree has changes."""
        changed = self._git("status", "--porcelain").splitlines()
        if changed:
            raise ReleaseError("commit first, or stash; these files differ:\n" + "\n".join(changed[:10]))

    def build(self) -> None:
        """The sdists, the wheels from them, and the npm package."""
        with tempfile.TemporaryDirectory(prefix="release-") as name:
            with tarfile.open(fileobj=BytesIO(self._archive())) as archive:
                archive.extractall(name, filter="data")
            _run("make", "--directory", name, "console")
            for source in DISTRIBUTIONS.values():
                _run(
                    *(sys.executable, "-m", "build", "--no-isolation"),
                    *("--outdir", self._folder, Path(name, source)),
                    env=self._environment(),
                )
            client = Path(name, "clients", "typescript")
            (client / "node_modules").symlink_to(self._node_modules)
            _run("node", client / "tools" / "build.mjs")
            _run("npm", "pack", "--silent", "--pack-destination", self._folder, client)
        _run(self._tools / "twine", "check", "--strict", *self._files("*.whl", "*.tar.gz"))

    def list_materials(self) -> None:
        """Both bills of materials.

        Raises:
            ReleaseError: a component has no licence that is compatible with ours.
        """
        for name, source in DISTRIBUTIONS.items():
            file = self._folder / f"{name}-{__version__}.cdx.json"
            project = self._root / source / "pyproject.toml"
            extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"].keys()
            with tempfile.TemporaryDirectory(prefix="materials-") as folder:
                python = self._install(Path(folder), name, extras - self._integrations())
                _run(
                    *(self._tools / "cyclonedx-py", "environment", "--pyproject", project),
                    "--output-reproducible",
                    *("--output-format", "JSON", "--output-file", file, python),
                    env=self._environment(),
                )
            wrong = incompatible(json.loads(file.read_text()))
            if wrong:
                raise ReleaseError(f"not known to be compatible with Apache-2.0: {wrong}")

    def note(self, heading: str) -> None:
        """The section of the changelog, and the check sums of all files."""
        text = section((self._root / "CHANGELOG.md").read_text(), heading)
        (self._folder / NOTES).write_text(f"# execserver {__version__}\n\n{text}")
        sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in self._files("*")]
        (self._folder / SUMS).write_text("".join(f"{line}\n" for line in sums))

    def _install(self, folder: Path, name: str, extras: Collection[str]) -> Path:
        """The interpreter of an environment with a distribution and its extras, and not even pip."""
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        (wheel,) = self._files(f"{name}-*.whl")
        client = [each for each in self._files("execclient-*.whl") if each != wheel]
        python = folder / "bin" / "python"
        _run(
            *(sys.executable, "-m", "pip", "--quiet", "--python", python, "install", "--constraint"),
            *(self._root / "constraints.txt", f"{wheel}[{','.join(sorted(extras))}]", *client),
        )
        for record in folder.rglob("*.dist-info/direct_url.json"):
            record.unlink()  # the path of the wheel, which would be in the list: another one each time
        return python

    def _integrations(self) -> set[str]:
        """The extras whose packages the user has, or chooses."""
        folder = self._root / "clients" / "python" / "execclient" / "integrations"
        return {path.stem for path in folder.iterdir()} - {"mcp"}

    def _environment(self) -> dict[str, str]:
        """With the time of the commit, which becomes that of all files."""
        return {**os.environ, "SOURCE_DATE_EPOCH": self._git("log", "-1", "--format=%ct").strip()}

    def _files(self, *patterns: str) -> list[Path]:
        return sorted(file for pattern in patterns for file in self._folder.glob(pattern))

    def _archive(self) -> bytes:
        return subprocess.run(
            ["git", "archive", "--format=tar", "HEAD"], cwd=self._root, check=True, stdout=subprocess.PIPE
        ).stdout

    def _git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self._root, check=True, stdout=subprocess.PIPE, text=True
        ).stdout


def _run(*command: object, env: dict[str, str] | None = None) -> None:
    """Raises `ReleaseError` with the output of the command if it fails."""
    argv = [str(each) for each in command]
    done = subprocess.run(
        argv,
        env=env,
        umask=MASK,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stdout}")


def release(root: Path, tools: Path, node_modules: Path, dist: Path, heading: str) -> Path:
    """Make a release; the folder of the version is replaced when all of it is made.

    Raises:
        ReleaseError: the work tree, the changelog, a check or a licence is in the way.
    """
    dist.mkdir(parents=True, exist_ok=True)
    target = dist / __version__
    with tempfile.TemporaryDirectory(prefix=".release-", dir=dist) as name:
        made = Path(name, __version__)
        made.mkdir()
        one = Release(root, tools, node_modules, made)
        one.check()
        section((root / "CHANGELOG.md").read_text(), heading)  # before the minute that the rest takes
        one.build()
        one.list_materials()
        one.note(heading)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a release and list its files."""
    parser = argparse.ArgumentParser(prog="python -m tools.release")
    parser.add_argument("--unreleased", action="store_true", help="a rehearsal: with the section Unreleased")
    parser.add_argument("--tools", type=Path, default=Path(".release/bin"), help="has twine and cyclonedx-py")
    packages = Path(".interop/typescript/node_modules")
    parser.add_argument("--node-modules", type=Path, default=packages, help="has the packages of npm")
    parser.add_argument("dist", type=Path)
    options = parser.parse_args(arguments)
    heading = "Unreleased" if options.unreleased else __version__
    try:
        tools, node_modules, dist = (
            each.absolute() for each in (options.tools, options.node_modules, options.dist)
        )
        target = release(Path.cwd(), tools, node_modules, dist, heading)
    except ReleaseError as error:
        sys.exit(f"no release: {error}")
    print((target / SUMS).read_text(), end="")


if __name__ == "__main__":
    main()
