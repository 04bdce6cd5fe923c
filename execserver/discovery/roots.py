"""`capabilityRoots/discoverV1`: the files of plugins and skills below a folder that the client names.

The files are returned as they are; the client reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import msgspec

from execprotocol.errors import RpcError, os_error_text
from execprotocol.path_uri import path_to_uri
from execserver.discovery.text_files import TextReader
from execserver.filesystem import operations
from execserver.filesystem.files import Files
from execserver.filesystem.walk import TRUNCATED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execprotocol.environment import CapabilityRootFiles, PluginFiles, SkillFiles, TextFile
    from execserver.filesystem.walk import Seen

MAX_ROOT_BYTES = 16 << 20
"""The contents of all files of a root."""

_MAX_DEPTH, _MAX_DIRECTORIES, _MAX_ENTRIES = 6, 2000, 20_000
"""How far a root is searched."""

MANIFESTS = tuple(f"{folder}/plugin.json" for folder in (".codex-plugin", ".claude-plugin", ".cursor-plugin"))
"""Where the manifest of a plugin may be, the first that is there is taken."""

_SKILL = "SKILL.md"
_SKILL_METADATA = "agents/openai.yaml"
_MCP_CONFIG, _APPS_CONFIG = ".mcp.json", ".app.json"


class _Tree(msgspec.Struct):
    """What a search has found."""

    skills: list[str]
    manifests: list[str]
    errors: list[tuple[int, str]]
    truncated: bool


async def discover_root(files: Files, root_id: str, path: str, most: int) -> tuple[CapabilityRootFiles, int]:
    """Find the plugin and the skills of a root. What is wrong with a root is in its result.

    Args:
        files: the files that may be read.
        root_id: the client's name for the root.
        path: the folder.
        most: bytes of all contents together.

    Returns:
        The result, and how many bytes of content it has.
    """
    reader = TextReader(files, min(most, MAX_ROOT_BYTES))
    found = empty_root(root_id, path_to_uri(path))
    found["warnings"] = reader.warnings
    try:
        tree = await _search(files, path)
    except RpcError as error:
        found["error"] = f"failed to inspect capability root {found['path']}: {error.message}"
        return found, 0
    if tree is None:
        found["error"] = f"capability root {found['path']} is not a directory"
        return found, 0
    reader.warnings += _search_warnings(tree, found["path"])
    manifest = await reader.read_first([f"{path}/{name}" for name in MANIFESTS])
    found["namespaceManifests"] = await _namespaces(reader, path, tree.manifests, manifest)
    if manifest is not None:
        found["plugin"] = await _plugin(reader, path, manifest)
    found["skills"] = [skill for each in tree.skills if (skill := await _skill(reader, each)) is not None]
    return found, min(most, MAX_ROOT_BYTES) - reader.left


def empty_root(root_id: str, uri: str, error: str | None = None) -> CapabilityRootFiles:
    """The result for a root without anything."""
    return {
        "id": root_id, "path": uri, "plugin": None, "skills": [], "namespaceManifests": [], "warnings": [],
        "error": error,
    }  # fmt: skip


async def _search(files: Files, path: str) -> _Tree | None:
    """Search a folder; None for a path that is none."""
    if not (await files.run(operations.metadata, path, False))["isDirectory"]:
        return None
    body = await files.list_json(
        operations.walk, _recognized, path, _MAX_DEPTH, _MAX_DIRECTORIES, _MAX_ENTRIES, True, False
    )
    return msgspec.json.decode(body, type=_Tree)


def _recognized(seen: Iterable[Seen]) -> bytes:
    """The files of a tree that matter, in the order of their URIs. Runs in a thread."""
    tree = _Tree([], [], [], False)
    for kind, path in seen:
        if kind == "file":
            if path.endswith(f"/{_SKILL}"):
                tree.skills.append(path)
            elif path.endswith(MANIFESTS):
                tree.manifests.append(path)
        elif kind == TRUNCATED:
            tree.truncated = True
        elif isinstance(kind, int):
            tree.errors.append((kind, path))
    tree.skills.sort(key=path_to_uri)
    tree.manifests.sort(key=_manifest_order)
    return json.dumps(msgspec.to_builtins(tree)).encode()


def _manifest_order(path: str) -> tuple[str, int]:
    root = plugin_root(path)
    return path_to_uri(root), MANIFESTS.index(path[len(root) + 1 :])


def plugin_root(manifest: str) -> str:
    """The folder of a plugin, by its manifest."""
    return os.path.dirname(os.path.dirname(manifest))


def _search_warnings(tree: _Tree, uri: str) -> list[str]:
    warnings = [
        f"failed to scan capability path {path_to_uri(path)}: {os_error_text(OSError(number, ''))}"
        for number, path in tree.errors
    ]
    if tree.truncated:
        warnings.append(f"capability scan reached its traversal limit (root: {uri})")
    return warnings


async def _namespaces(
    reader: TextReader, path: str, manifests: list[str], own: TextFile | None
) -> list[TextFile]:
    """The manifests that give skills below `path` their namespace: its own or that of a folder above it, then
    those below it.
    """
    found = []
    inherited, folder = own, path
    while inherited is None and folder != "/":
        folder = os.path.dirname(folder)
        inherited = await reader.read_first([os.path.join(folder, name) for name in MANIFESTS])
    seen = set()
    if inherited is not None:
        found.append(inherited)
        seen.add(folder)
    for manifest in manifests:
        root = plugin_root(manifest)
        if root not in seen:
            seen.add(root)
            text = await reader.read(manifest)
            if text is not None:
                found.append(text)
    return found


async def _skill(reader: TextReader, path: str) -> SkillFiles | None:
    instructions = await reader.read(path)
    if instructions is None:
        return None
    metadata = await reader.read(f"{os.path.dirname(path)}/{_SKILL_METADATA}")
    return {"instructions": instructions, "metadata": metadata}


async def _plugin(reader: TextReader, path: str, manifest: TextFile) -> PluginFiles:
    try:
        declared = json.loads(manifest["contents"])
    except (ValueError, RecursionError):
        declared = None
    if not isinstance(declared, dict):
        declared = {}
    servers = declared.get("mcpServers")
    return {
        "manifest": manifest,
        # Servers in the manifest itself need no file.
        "mcpConfig": None
        if isinstance(servers, dict)
        else await _declared(reader, path, manifest, "mcpServers", servers, _MCP_CONFIG),
        "appsConfig": await _declared(reader, path, manifest, "apps", declared.get("apps"), _APPS_CONFIG),
    }


async def _declared(
    reader: TextReader, path: str, manifest: TextFile, field: str, value: Any, usual: str
) -> TextFile | None:
    """The file that a manifest declares, else the one of the usual name."""
    if isinstance(value, str):
        if not value.startswith("./"):
            fault = "path must start with `./`"
        elif value == "./" or ".." in value.replace("\\", "/").split("/") or "\0" in value:
            fault = "path must remain below the capability root"
        else:
            return await reader.read(f"{path}/{value[2:]}")
        reader.warnings.append(f"ignoring {field} in {manifest['path']}: {fault}")
    return await reader.read(f"{path}/{usual}")
