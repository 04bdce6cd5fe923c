"""`capabilities/discoverV2`: installed plugins, and the skills of the user and the system."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from execprotocol.errors import RpcError
from execprotocol.path_uri import parse_path_uri, path_to_uri
from execserver.discovery.roots import MAX_ROOT_BYTES, discover_root, plugin_root
from execserver.discovery.skills import FrontMatter, SkillError, skill_metadata
from execserver.discovery.text_files import TextReader
from execserver.filesystem import operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.files import Files

if TYPE_CHECKING:
    from execprotocol.environment import (
        CapabilityRootFiles,
        DiscoverV2Result,
        DiscoveryRoot,
        InstalledPlugin,
        InstalledSkill,
        TextFile,
    )

SYSTEM_FOLDER = "/etc/codex"

_CACHE = "plugins/cache"
_INSTALLATION = ".codex-remote-plugin-install.json"
_MAX_INSTALLATION_BYTES = 16 << 10
_MAX_REMOTE_ID = 1024
_MAX_PLUGINS = 512
_MAX_QUALIFIED_NAME = 2 * 64 + 1
_MAX_CAPABILITIES = 2048
_MAX_RESULT_BYTES = 4 << 20
_MAX_WARNINGS = 64

_SECONDS = 10.0
"""The longest search."""

LOST_LOCATION = "some capability locations could not be resolved; discovery may be incomplete"
LOST_METADATA = "some capability metadata could not be loaded; discovery may be incomplete"
TOO_LARGE = "capability discovery size limit reached"
TOO_LONG = f"capability discovery took longer than {_SECONDS:.0f} s; it may be incomplete"


class Location(msgspec.Struct, frozen=True):
    """A folder with skills, or with an installed plugin."""

    path: str
    root_id: str | None = None
    plugin_id: str = ""
    version: str = ""
    remote_id: str | None = None


class Findings(msgspec.Struct):
    """What one location has."""

    plugin: InstalledPlugin | None
    skills: list[InstalledSkill]
    incomplete: bool


async def discover_installed(
    files: Files, calls: BlockingCalls, codex_home: str, user_home: str
) -> DiscoverV2Result:
    """Find what is installed. What is wrong with it becomes a warning.

    Args:
        files: the files that may be read.
        calls: threads for parsing.
        codex_home: the agent's own folder.
        user_home: the home folder.
    """
    result = _Result()
    deadline = time.monotonic() + _SECONDS
    try:
        async with asyncio.timeout(_SECONDS):
            async for location in _locations(files, codex_home, user_home, result.warnings):
                root, _ = await discover_root(files, "", location.path, MAX_ROOT_BYTES)
                if root["error"] is None and not result.add(
                    await calls.run(_parse, location, root, deadline)
                ):
                    break
    except TimeoutError:
        result.warnings.append(TOO_LONG)
    return result.finished()


class _Result:
    """A result within its limits."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._plugins: list[InstalledPlugin] = []
        self._skills: list[InstalledSkill] = []
        self._left = _MAX_CAPABILITIES
        self._bytes_left = _MAX_RESULT_BYTES
        self._truncated = False

    def add(self, found: Findings) -> bool:
        """Take over what a location has; false once the result is full."""
        if found.incomplete:
            self.warnings.append(LOST_METADATA)
        plugin = found.plugin
        if plugin is not None:
            self._truncated |= len(plugin["skills"]) >= self._left
            del plugin["skills"][max(self._left - 1, 0) :]
            if self._admit(plugin, 1 + len(plugin["skills"])):
                self._plugins.append(plugin)
        for skill in found.skills:
            if self._admit(skill, 1):
                self._skills.append(skill)
        return self._left > 0

    def _admit(self, item: InstalledPlugin | InstalledSkill, count: int) -> bool:
        size = len(msgspec.json.encode(item))
        if count > self._left or size > self._bytes_left:
            self._truncated = True
            return False
        self._left -= count
        self._bytes_left -= size
        return True

    def finished(self) -> DiscoverV2Result:
        """The result."""
        if self._truncated:
            self.warnings.insert(0, TOO_LARGE)
        self._plugins.sort(key=lambda plugin: (plugin["id"], plugin["root"]))
        return {
            "plugins": self._plugins,
            "skills": self._skills,
            "warnings": self.warnings[:_MAX_WARNINGS],
        }


# -- where plugins and skills are


async def _locations(
    files: Files, codex_home: str, user_home: str, warnings: list[str]
) -> AsyncIterator[Location]:
    found, complete = await _installed_plugins(files, f"{codex_home}/{_CACHE}")
    if not complete:
        warnings.append(LOST_LOCATION)
    for location in found:
        yield location
    seen = set()
    for root_id, path in {
        "codex-home-skills": f"{codex_home}/skills",
        "user-agent-skills": f"{user_home}/.agents/skills",
        "system-skills": f"{SYSTEM_FOLDER}/skills",
    }.items():
        if path not in seen:
            seen.add(path)
            yield Location(path, root_id)


_MARKETPLACE = re.compile(r"[A-Za-z0-9_-]+")
_PLUGIN_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_VERSION = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.+-]+")


async def _installed_plugins(files: Files, cache: str) -> tuple[list[Location], bool]:
    """The newest version of each plugin, by id, and whether all could be looked at."""
    found: list[Location] = []
    complete = True
    packages = [
        (f"{name}@{marketplace}", f"{cache}/{marketplace}/{name}")
        for marketplace in await _folders(files, cache, _MARKETPLACE)
        for name in await _folders(files, f"{cache}/{marketplace}", _PLUGIN_NAME)
    ]
    for plugin_id, package in sorted(packages):
        version = await _newest(files, package)
        if version is None:
            continue
        if len(found) == _MAX_PLUGINS:
            return found, False
        reader = TextReader(files, _MAX_INSTALLATION_BYTES)
        installation = await reader.read(f"{package}/{_INSTALLATION}")
        remote_id = _remote_id(installation)
        complete &= not reader.warnings and (installation is None) == (remote_id is None)
        found.append(Location(f"{package}/{version}", None, plugin_id, version, remote_id))
    return found, complete


async def _newest(files: Files, package: str) -> str | None:
    """The version of a plugin to use: `local`, else the newest. Links do not count."""
    versions = await _folders(files, package, _VERSION)
    versions.sort(key=functools.cmp_to_key(compare_versions), reverse=True)
    versions.sort(key=lambda version: version != "local")
    for version in versions:
        if not (await files.run(operations.metadata, f"{package}/{version}", False))["isSymlink"]:
            return version
    return None


async def _folders(files: Files, path: str, name: re.Pattern[str]) -> list[str]:
    """The folders in a folder whose names are well formed; none if it cannot be listed."""
    try:
        body = await files.list_json(operations.read_directory, _names_of_folders, path)
    except RpcError:
        return []
    names: list[str] = msgspec.json.decode(body)
    return [each for each in names if name.fullmatch(each)]


def _names_of_folders(entries: Any) -> bytes:
    return json.dumps([name for name, kind in entries if kind == stat.S_IFDIR]).encode()


def _remote_id(installation: TextFile | None) -> str | None:
    if installation is None:
        return None
    try:
        found = json.loads(installation["contents"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("schema_version") != 1:
        return None
    remote_id = found.get("remote_plugin_id")
    if not isinstance(remote_id, str) or not 0 < len(remote_id.strip()) <= _MAX_REMOTE_ID:
        return None
    return remote_id.strip()


_NUMBER = r"(?:0|[1-9][0-9]*)"
_IDENTIFIER = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMANTIC = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z.-]+))?"
)


def compare_versions(left: str, right: str) -> int:
    """Below zero if the left version is older: semantic versions by their rules, others as texts."""
    first, second = _SEMANTIC.fullmatch(left), _SEMANTIC.fullmatch(right)
    older, newer = left < right, left > right
    if first is not None and second is not None:
        older, newer = _version_key(first) < _version_key(second), _version_key(first) > _version_key(second)
    return newer - older


def _version_key(version: re.Match[str]) -> tuple[Any, ...]:
    *numbers, pre, build = version.groups()
    # A release is newer than its candidates, and numbers are older than words.
    candidate = (1,) if pre is None else (0, *map(_identifier_key, pre.split(".")))
    return (*map(int, numbers), candidate, [_identifier_key(each) for each in (build or "").split(".")])


def _identifier_key(identifier: str) -> tuple[int, int, str]:
    return (0, int(identifier), "") if identifier.isdigit() else (1, 0, identifier)


# -- what they have


class _Manifest(msgspec.Struct, rename="camel"):
    class Interface(msgspec.Struct, rename="camel"):
        display_name: str | None = None

    name: str = ""
    interface: Interface | None = None
    mcp_servers: Any = None
    apps: str | None = None


def _parse(location: Location, root: CapabilityRootFiles, deadline: float) -> Findings:
    """Read the files of a location until a time of the monotonic clock. Runs in a thread."""
    files, incomplete = root["plugin"], bool(root["warnings"])
    if not location.plugin_id:
        skills, complete = _skills(root, _discovery_root(location), deadline)
        return Findings(None, skills, incomplete or not complete)
    if files is None:
        return Findings(None, [], True)
    try:
        manifest = msgspec.json.decode(files["manifest"]["contents"], type=_Manifest)
    except (msgspec.DecodeError, RecursionError):
        return Findings(None, [], True)
    servers = manifest.mcp_servers
    if isinstance(servers, dict):
        declared = json.dumps(servers, ensure_ascii=False, separators=(",", ":"))
        files["mcpConfig"] = {"path": files["manifest"]["path"], "contents": declared}
    incomplete |= isinstance(servers, str) and files["mcpConfig"] is None
    incomplete |= manifest.apps is not None and files["appsConfig"] is None
    skills, complete = _skills(root, None, deadline)
    plugin: InstalledPlugin = {
        "id": location.plugin_id,
        "displayName": _display_name(manifest, location.path),
        "remotePluginId": location.remote_id,
        "version": location.version,
        "root": path_to_uri(location.path),
        "files": files,
        "skills": skills,
    }
    return Findings(plugin, [], incomplete or not complete)


def _display_name(manifest: _Manifest, path: str) -> str:
    shown = manifest.interface.display_name if manifest.interface is not None else None
    return (shown or "").strip() or _namespace(manifest.name, path)


def _namespace(name: str, root: str) -> str:
    return name if name.strip() else os.path.basename(root)


def _discovery_root(location: Location) -> DiscoveryRoot:
    assert location.root_id is not None
    return {"id": location.root_id, "path": path_to_uri(location.path)}


def _skills(
    root: CapabilityRootFiles, discovery_root: DiscoveryRoot | None, deadline: float
) -> tuple[list[InstalledSkill], bool]:
    """The skills of a root, and whether all could be read."""
    namespaces = {}
    for text in root["namespaceManifests"]:
        folder = plugin_root(parse_path_uri(text["path"]))
        try:
            namespaces[folder] = _namespace(msgspec.json.decode(text["contents"], type=_Name).name, folder)
        except (msgspec.DecodeError, RecursionError):
            continue
    found: list[InstalledSkill] = []
    for skill in root["skills"]:
        if time.monotonic() > deadline:
            break
        instructions = skill["instructions"]
        folder = os.path.dirname(parse_path_uri(instructions["path"]))
        try:
            front = FrontMatter(instructions["contents"], os.path.basename(folder))
            name = _qualified(front.name, folder, namespaces)
        except SkillError:
            continue
        metadata = skill["metadata"]
        dependencies, policy = (None, None) if metadata is None else skill_metadata(metadata["contents"])
        item: InstalledSkill = {
            "name": name,
            "description": front.description,
            "shortDescription": front.short_description,
            "path": instructions["path"],
            "dependencies": dependencies,
            "policy": policy,
        }
        if discovery_root is not None:
            item["discoveryRoot"] = discovery_root
        found.append(item)
    return found, len(found) == len(root["skills"])


class _Name(msgspec.Struct):
    name: str = ""


def _qualified(name: str, folder: str, namespaces: dict[str, str]) -> str:
    """The name of a skill with that of the nearest plugin above it."""
    while folder not in namespaces:
        if folder == "/":
            return name
        folder = os.path.dirname(folder)
    qualified = f"{namespaces[folder]}:{name}"
    if len(qualified) > _MAX_QUALIFIED_NAME:
        raise SkillError(f"the name has more than {_MAX_QUALIFIED_NAME} characters")
    return qualified
