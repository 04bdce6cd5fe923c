"""`environmentConfig/read`: the layers of the agent's configuration on this host, the lowest first.

Only the keys that are asked for leave the host. A project's layer counts if its folder is trusted, which the
files of the system, the user or the administrator say.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import pybase64
import tomli_w

from execprotocol.errors import InternalError, NotFound, RpcError
from execprotocol.path_uri import path_to_uri
from execserver.discovery.installed import SYSTEM_FOLDER
from execserver.filesystem import operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.files import Files

if TYPE_CHECKING:
    from execprotocol.environment import ConfigLayer, ConfigLayers

Table = dict[str, Any]
Selector = dict[str, "Selector"] | None
"""Keys to keep, with those below each; None keeps all."""

_MAX_FILE_BYTES = 4 << 20
_MAX_REPLY_CHARACTERS = 8 << 20
_MAX_LEVELS = 256
"""Folders between the project and the working directory."""

_ROOT_MARKERS = [".git"]
_OLDER_KEYS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "approval_policy": (
        "allowed_approval_policies",
        {policy: [policy] for policy in ("untrusted", "on-failure", "on-request", "never")},
    ),
    "approvals_reviewer": (
        "allowed_approvals_reviewers",
        {"user": ["user"], "auto_review": ["auto_review", "user"]},
    ),
    "sandbox_mode": (
        "allowed_sandbox_modes",
        {
            "read-only": ["read-only"],
            "workspace-write": ["read-only", "workspace-write"],
            "danger-full-access": ["read-only", "danger-full-access"],
        },
    ),
}
"""Keys of `managed_config.toml`: the requirement that each implies, by its values."""


class Layer(msgspec.Struct, frozen=True):
    """One file of configuration."""

    source: str
    folder: str
    table: Table


class Stack(msgspec.Struct):
    """Layers, and where those of the client's own service go between them."""

    layers: list[Layer]
    cloud_index: int

    def selected(self, paths: Iterable[list[str]]) -> ConfigLayers:
        """The layers that set one of the keys, with those keys only. May take a while.

        Raises:
            InternalError: the keys have too many bytes or levels.
        """
        selector = _selector(paths)
        found: list[ConfigLayer] = []
        below = 0
        for index, layer in enumerate(self.layers):
            try:
                table = _project(layer.table, selector)
                toml = tomli_w.dumps(table)
            except RecursionError:
                raise _failure(f"{layer.source} has too many levels") from None
            if table:
                found.append({"source": layer.source, "baseDir": path_to_uri(layer.folder), "toml": toml})
                below += index < self.cloud_index
        if sum(len(layer["toml"]) for layer in found) > _MAX_REPLY_CHARACTERS:
            raise _failure(f"the keys have more than {_MAX_REPLY_CHARACTERS} characters")
        return {"layers": found, "cloudInsertionIndex": below}


class ConfigReader:
    """Reads the configuration for one request.

    Args:
        files: the files that may be read.
        calls: threads for parsing.
        codex_home: the agent's own folder.
    """

    def __init__(self, files: Files, calls: BlockingCalls, codex_home: str) -> None:
        self._files = files
        self._calls = calls
        self._home = codex_home

    async def read(self, cwd: str) -> tuple[Stack, Stack]:
        """The configuration for a working directory, and the requirements.

        Raises:
            InternalError: a file cannot be read, is no TOML, or has a value of another kind where this one
                counts. The message names the file.
        """
        system = await self._layer("system ({})", f"{SYSTEM_FOLDER}/config.toml")
        user = await self._layer("user ({})", f"{self._home}/config.toml")
        managed = await self._layer("legacy managed_config.toml ({})", f"{SYSTEM_FOLDER}/managed_config.toml")
        required = await self._layer("{}", f"{SYSTEM_FOLDER}/requirements.toml")
        known = [layer for layer in (system, user, managed) if layer is not None]
        projects = await self._project_layers(cwd, known)
        config = Stack([], 0 if system is None else 1)
        config.layers = [layer for layer in (system, user, *projects, managed) if layer is not None]
        requirements = Stack([], 0 if required is None else 1)
        older = None if managed is None else _older_requirements(managed)
        requirements.layers = [layer for layer in (required, older) if layer is not None]
        return config, requirements

    async def _layer(self, source: str, path: str) -> Layer | None:
        """A layer by its file; None if there is none."""
        found = (await self._files.find([path], _MAX_FILE_BYTES))[0]
        if isinstance(found, NotFound):
            return None
        if isinstance(found, RpcError):
            raise _failure(f"cannot read {path}: {found.message}")
        if not found["isFile"]:
            raise _failure(f"{path} is not a file")
        if "dataBase64" not in found:
            raise _failure(f"{path} has more than {_MAX_FILE_BYTES} bytes")
        table = await self._calls.run(_parse, path, found["dataBase64"])
        return Layer(source.format(path), os.path.dirname(path), table)

    # -- projects

    async def _project_layers(self, cwd: str, known: list[Layer]) -> list[Layer]:
        """The layers of trusted folders between the project's root and the working directory."""
        trust = _trust(known)
        folders = _with_parents(cwd)[:_MAX_LEVELS]
        root = await self._first(folders, _markers(known)) or folders[0]
        repository = await self._first(folders, _ROOT_MARKERS)
        main = None if repository is None else await self._main_checkout(repository)
        fallback = [each for each in (root, repository, main) if each is not None]
        layers: list[Layer] = []
        for folder in reversed(folders[: folders.index(root) + 1]):
            config = f"{folder}/.codex"
            if config == self._home or not await self._is_trusted([folder, *fallback], trust):
                continue
            layer = await self._project_layer(config)
            if layer is None:
                continue
            if repository is None or main is None or main == repository:
                layers.append(layer)
            else:
                layers += await self._worktree_layers(layer, main + config.removeprefix(repository))
        return layers

    async def _project_layer(self, folder: str) -> Layer | None:
        # What is no folder has no file either.
        path = f"{folder}/config.toml"
        return await self._layer("project ({})", path) if await self._is_folder(folder) else None

    async def _worktree_layers(self, layer: Layer, main: str) -> list[Layer]:
        """The layer of a linked worktree, and the hooks of the main checkout in place of its own."""
        own = {key: value for key, value in layer.table.items() if key != "hooks"}
        checkout = await self._project_layer(main)
        hooks = {} if checkout is None else checkout.table.get("hooks", {})
        layers = [Layer(layer.source, layer.folder, own)]
        if checkout is not None and hooks:
            layers.append(Layer(checkout.source, checkout.folder, {"hooks": hooks}))
        return layers

    async def _first(self, folders: list[str], markers: list[str]) -> str | None:
        """The first folder that has one of the markers."""
        for folder in folders:
            for marker in markers:
                path = f"{folder}/{marker}"
                if marker == ".git" and await self._is_folder(path):
                    path += "/HEAD"  # an empty folder is not a repository
                if await self._exists(path):
                    return folder
        return None

    async def _main_checkout(self, repository: str) -> str:
        """The folder of the repository to which a worktree belongs, or the same folder."""
        found = (await self._files.find([f"{repository}/.git"], 4096))[0]
        if isinstance(found, RpcError) or "dataBase64" not in found:
            return repository
        return _main_checkout(repository, os.fsdecode(pybase64.b64decode(found["dataBase64"])))

    async def _is_trusted(self, keys: list[str], trust: dict[str, str]) -> bool:
        """Whether the first of the folders that is known is trusted."""
        for key in keys:
            level = trust.get(key)
            if level is None and trust:
                level = trust.get(await self._resolved(key))
            if level is not None:
                return level == "trusted"
        return False

    async def _resolved(self, path: str) -> str:
        try:
            return await self._files.run(operations.canonicalize, path)
        except RpcError:
            return path

    async def _exists(self, path: str) -> bool:
        try:
            await self._files.run(operations.metadata, path, False)
        except RpcError:
            return False
        return True

    async def _is_folder(self, path: str) -> bool:
        try:
            return (await self._files.run(operations.metadata, path, False))["isDirectory"]
        except RpcError:
            return False


def _with_parents(path: str) -> list[str]:
    """A folder and all above it."""
    folders = [os.path.normpath(path)]
    while folders[-1] != "/":
        folders.append(os.path.dirname(folders[-1]))
    return folders


def _main_checkout(repository: str, link: str) -> str:
    folder, _, name = link.removeprefix("gitdir:").strip().rpartition("/.git/worktrees/")
    return os.path.normpath(os.path.join(repository, folder)) if name else repository


def _failure(reason: str) -> InternalError:
    return InternalError(f"failed to load executor-local config: {reason}")


def _parse(path: str, content: str) -> Table:
    try:
        return tomllib.loads(pybase64.b64decode(content).decode())
    except UnicodeDecodeError:
        raise _failure(f"{path} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _failure(f"{path}: {error}") from None


# -- values that count here


def _trust(known: list[Layer]) -> dict[str, str]:
    """The trust in folders; a higher layer wins."""
    trust: dict[str, str] = {}
    for layer in known:
        projects = layer.table.get("projects", {})
        if not isinstance(projects, dict):
            raise _wrong(layer, "projects", "a table")
        for folder, project in projects.items():
            if not isinstance(project, dict):
                raise _wrong(layer, f"projects.{folder}", "a table")
            level = project.get("trust_level")
            if level not in (None, "trusted", "untrusted"):
                raise _wrong(layer, f"projects.{folder}.trust_level", "`trusted` or `untrusted`")
            if level is not None:
                trust[folder] = level
    return trust


def _markers(known: list[Layer]) -> list[str]:
    """The names that mark a project's root."""
    markers = _ROOT_MARKERS
    for layer in known:
        markers = layer.table.get("project_root_markers", markers)
        if not isinstance(markers, list) or not all(isinstance(each, str) for each in markers):
            raise _failure("project_root_markers must be an array of strings")
    return markers


def _older_requirements(managed: Layer) -> Layer | None:
    """The requirements that the older file of an administrator implies."""
    table: Table = {}
    for key, (required, meanings) in _OLDER_KEYS.items():
        value = managed.table.get(key)
        if isinstance(value, dict) and key == "approval_policy":
            table[required] = [value]  # exact rules in place of a name
        elif value is not None:
            if not isinstance(value, str) or value not in meanings:
                raise _wrong(managed, key, "one of " + ", ".join(meanings))
            table[required] = meanings[value]
    path = f"{managed.folder}/managed_config.toml"
    return Layer(path, managed.folder, table) if table else None


def _wrong(layer: Layer, key: str, kind: str) -> InternalError:
    return _failure(f"`{key}` of {layer.source} must be {kind}")


# -- keys


def _selector(paths: Iterable[list[str]]) -> Selector:
    root: dict[str, Selector] = {}
    for path in paths:
        node: dict[str, Selector] = root
        for key in path[:-1]:
            below = node.setdefault(key, {})
            if below is None:
                break
            node = below
        else:
            node[path[-1]] = None
    return root


def _project(value: Table, selector: Selector) -> Table:
    """The selected keys of a table. A value in place of a table stays: it hides that of a lower layer."""
    if selector is None:
        return value
    return {
        key: _project(each, selector[key]) if isinstance(each, dict) else each
        for key, each in value.items()
        if key in selector
    }
