"""Plugins, skills and layers of configuration to be found: a home, an agent's folder and a project."""

from __future__ import annotations

import json
from pathlib import Path


def write(path: Path, content: str | bytes = "") -> Path:
    """Make a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def skill(folder: Path, name: str, *further: str) -> Path:
    """Make a skill."""
    lines = ["---", f"name: {name}", f"description: What {name} is for", *further, "---", f"# {name}", ""]
    return write(folder / "SKILL.md", "\n".join(lines))


def plugin(home: Path, name: str, version: str, marketplace: str = "market", **manifest: object) -> Path:
    """Make an installed plugin with one skill; its folder."""
    folder = home / "plugins/cache" / marketplace / name / version
    write(folder / ".codex-plugin/plugin.json", json.dumps({"name": name, **manifest}))
    skill(folder / "skills/first", "first")
    return folder


def make_everything(root: Path) -> tuple[Path, Path, Path]:
    """A home with something of each kind, sound and broken; `(home, agent's folder, project)`."""
    home, project = root / "home", root / "project"
    agent = home / ".codex"
    _make_skills(root, agent / "skills")
    skill(home / ".agents/skills/users", "users")
    skill(project / ".agents/skills/projects", "projects")
    _make_plugins(agent)
    write(
        agent / "config.toml",
        'model = "m"\n[a]\nb = 1\n"c.d" = [1.5, {x = "y"}]\nwhen = 2026-01-01\n[mcp_servers.u]\nurl = "http://u/"\n'
        f'[projects."{project}"]\ntrust_level = "trusted"\n',
    )
    write(project / ".git/HEAD")
    write(project / ".codex/config.toml", "[a]\nb = 2\n[a.e]\n")
    write(project / "below/.codex/config.toml", "a = 3\n")
    write(root / "untrusted/.codex/config.toml", "[a]\nb = 4\n")
    return home, agent, project


def _make_skills(root: Path, skills: Path) -> None:
    skill(skills / "one", "one", "metadata:", "  short-description: 'In  short'")
    write(
        skills / "one/agents/openai.yaml",
        "interface:\n  display_name: One\ndependencies:\n  tools:\n"
        "  - {type: mcp, value: docs, url: http://d/, oauth: {callback_port: 8080}}\n  - {type: mcp}\n"
        "policy:\n  allow_implicit_invocation: false\n  products: [CODEX]\n",
    )
    skill(skills / "broken-metadata", "broken-metadata")
    write(skills / "broken-metadata/agents/openai.yaml", "policy: [\n")
    skill(skills / "a/b/c/d/e", "deep")
    skill(skills / "a/b/c/d/e/f/g", "too-deep")
    skill(skills / ".hidden", "hidden")
    write(skills / "prose/SKILL.md", "---\nname: prose\ndescription: Build for AWS: it's ECS # now\n---\n")
    write(skills / "flow/SKILL.md", "---\nname: flow\ndescription: [unclosed\n---\n")
    write(skills / "Folder  name/SKILL.md", "---\nname: ~\ndescription: 1.50\n---\n")
    for name, text in {
        "no-front": "# nothing\n",
        "no-end": "---\nname: a\n",
        "no-description": "---\nname: a\n---\n",
        "list": "---\nname: [a]\ndescription: b\n---\n",
        "alias": "---\nname: a\ndescription: *b\n---\n",
        "long": f"---\nname: {'n' * 65}\ndescription: b\n---\n",
    }.items():
        write(skills / name / "SKILL.md", text)
    write(skills / "not-text/SKILL.md", b"---\nname: \xff\n---\n")
    write(skills / "huge/SKILL.md", "-" * (1 << 20) + "-")
    skill(root / "outside/linked", "linked")
    (skills / "link").symlink_to(root / "outside")
    (skills / "one/loop").symlink_to("..")
    (skills / "file-link").mkdir()
    (skills / "file-link/SKILL.md").symlink_to(root / "outside/linked/SKILL.md")
    write(skills / "pack/.claude-plugin/plugin.json", '{"name": "pack"}')
    skill(skills / "pack/skills/packed", "packed")


def _make_plugins(agent: Path) -> None:
    for version in ("1.9.0", "1.10.0-rc.1", "1.10.0", "01.1.0"):
        plugin(agent, "versions", version)
    for version in ("local", "9.9.9"):
        plugin(agent, "local", version)
    folder = plugin(agent, "declared", "1.0.0", mcpServers="./conf/mcp.json", apps="./apps.json")
    write(folder / "conf/mcp.json", '{"mcp": 1}')
    write(folder / "apps.json", '{"apps": 1}')
    folder = plugin(
        agent, "usual", "1.0.0", interface={"displayName": " Usual "}, mcpServers="../x", apps="/x"
    )
    write(folder / ".mcp.json", '{"mcp": 2}')
    write(folder / ".app.json", '{"apps": 2}')
    plugin(agent, "inline", "1.0.0", mcpServers={"z": {"url": "ü"}, "a": {}})
    plugin(agent, "missing", "1.0.0", mcpServers="./missing.json")
    write(plugin(agent, "no-json", "1.0.0") / ".codex-plugin/plugin.json", "{")
    plugin(agent, "wrong", "1.0.0", interface=5)
    folder = plugin(agent, "remote", "1.0.0")
    write(
        folder.parent / ".codex-remote-plugin-install.json",
        '{"schema_version": 1, "remote_plugin_id": " plugin_1 "}',
    )
    folder = plugin(agent, "remote-broken", "1.0.0")
    write(folder.parent / ".codex-remote-plugin-install.json", "{}")
    skill(agent / "plugins/cache/market/no-manifest/1.0.0/skills/x", "x")
    plugin(agent, "bad name", "1.0.0")
    plugin(agent, "p", "1.0.0", "bad.market")
