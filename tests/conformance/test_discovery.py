"""Plugins, skills and layers of configuration are found; what is broken becomes a warning."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.endpoint import OWN_SERVER, socket_folder
from tests.sandbox.profiles import READ_ROOT, at, context, restricted
from tests.sandbox_user import remove_tree
from tests.support.capabilities import make_everything, plugin, skill, write
from tests.support.wire import Client, Json, Server, connect_unix, path_uri

pytestmark = pytest.mark.skipif(not OWN_SERVER, reason="tests/interop compares with the reference")

Start = Callable[..., Client]
LOST = "some capability metadata could not be loaded; discovery may be incomplete"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("discovery").resolve()


@pytest.fixture
def here(folder: Path) -> Iterator[Path]:
    """A folder that is empty for each test, for its daemon is the same one."""
    (folder / "home/.codex").mkdir(parents=True)
    yield folder
    for each in folder.iterdir():
        remove_tree(each)


@pytest.fixture(scope="module")
def serve(folder: Path, environment: dict[str, str]) -> Iterator[Callable[..., Server]]:
    """Starts daemons whose home is in the folder; one for all tests that need no flags."""
    homes = {"HOME": str(folder / "home"), "CODEX_HOME": str(folder / "home/.codex")}
    sockets = socket_folder()
    running: dict[tuple[tuple[str, ...], tuple[str, ...]], Server] = {}

    def serve(flags: tuple[str, ...], prefix: tuple[str, ...]) -> Server:
        if (flags, prefix) not in running:
            url = f"unix://{sockets}/{len(running)}"
            running[flags, prefix] = Server(
                url, *flags, env={**environment, **homes}, cwd=folder, prefix=prefix
            )
        return running[flags, prefix]

    yield serve
    for server in running.values():
        assert server.stop() == 0
    remove_tree(sockets)


@pytest.fixture
def start(here: Path, serve: Callable[..., Server]) -> Iterator[Start]:
    """Connects to a daemon, which is started if it is not there."""
    clients: list[Client] = []

    def connect(*flags: str, prefix: tuple[str, ...] = ()) -> Client:
        client = connect_unix(serve(flags, prefix).url.removeprefix("unix://"))
        clients.append(client)
        client.handshake()
        return client

    yield connect
    for client in clients:
        client.close()


def discovered(client: Client, folder: Path, **root: Json) -> Json:
    [found] = client.call(
        "capabilityRoots/discoverV1", {"roots": [{"id": "r", "path": path_uri(folder), **root}]}
    )["roots"]
    return found


def installed(client: Client, **params: Json) -> Json:
    return client.call("capabilities/discoverV2", {"cwd": "file:///no/such/folder", **params})


def layers(
    client: Client, cwd: Path, *paths: list[str], requirements: list[list[str]] | None = None
) -> list[tuple[str, Any]]:
    """The sources of the configuration's layers, and what they set."""
    params = {"cwd": path_uri(cwd), "configPaths": list(paths), "requirementsPaths": requirements or []}
    found = client.call("environmentConfig/read", params)["config"]
    return [(layer["source"], tomllib.loads(layer["toml"])) for layer in found["layers"]]


# -- capabilityRoots/discoverV1


@pytest.mark.statement("D7")
def test_a_root_has_the_files_of_its_plugin_and_skills(start: Start, here: Path) -> None:
    folder = plugin(here, "p", "1.0.0", mcpServers="./servers.json")
    servers = write(folder / "servers.json", '{"mcpServers": {}}')
    metadata = write(folder / "skills/first/agents/openai.yaml", "policy: {}\n")

    found = discovered(start(), folder)

    manifest = folder / ".codex-plugin/plugin.json"
    instructions = folder / "skills/first/SKILL.md"
    assert found == {
        "id": "r",
        "path": path_uri(folder),
        "plugin": {"manifest": text(manifest), "mcpConfig": text(servers), "appsConfig": None},
        "skills": [{"instructions": text(instructions), "metadata": text(metadata)}],
        "namespaceManifests": [text(manifest)],
        "warnings": [],
        "error": None,
    }


def text(path: Path) -> Json:
    return {"path": path_uri(path), "contents": path.read_text()}


@pytest.mark.statement("D7")
def test_skills_below_a_plugin_have_its_manifest_as_namespace(start: Start, here: Path) -> None:
    folder = plugin(here, "p", "1.0.0")
    found = discovered(start(), folder / "skills/first")
    assert found["plugin"] is None
    assert [manifest["path"] for manifest in found["namespaceManifests"]] == [
        path_uri(folder / ".codex-plugin/plugin.json")
    ]


@pytest.mark.statement("D9")
def test_a_root_that_cannot_be_searched_says_why(start: Start, here: Path) -> None:
    client = start()
    missing, file = here / "missing", write(here / "file")
    assert "No such file or directory (os error 2)" in discovered(client, missing)["error"]
    assert discovered(client, file)["error"].endswith("is not a directory")
    foreign = client.call("capabilityRoots/discoverV1", {"roots": [{"id": "f", "path": "file://other/x"}]})
    assert foreign["roots"][0]["error"].endswith("'file://other/x' is invalid on 'linux'")


@pytest.mark.statement("D9")
def test_more_than_128_roots_are_refused(start: Start, here: Path) -> None:
    client = start()
    roots = [{"id": str(number), "path": path_uri(here)} for number in range(129)]
    failure = client.refused("capabilityRoots/discoverV1", {"roots": roots})
    assert (failure.code, failure.message) == (
        -32600, "capability root discovery accepts at most 128 roots"
    )  # fmt: skip
    assert len(client.call("capabilityRoots/discoverV1", {"roots": roots[:128]})["roots"]) == 128


@pytest.mark.statement("D9")
def test_what_cannot_be_read_is_a_warning_and_the_rest_is_found(start: Start, here: Path) -> None:
    _, agent, _ = make_everything(here)
    found = discovered(start(), agent / "skills")
    names = [Path(each["instructions"]["path"]).parent.name for each in found["skills"]]
    assert "deep" not in names  # the sixth level is `e`
    assert {"e", "one", ".hidden", "linked", "packed", "list"} <= set(names)
    assert not {"g", "huge", "not-text", "file-link"} & set(names)
    assert names.count("one") == 1, "the loop of links was entered"
    assert found["warnings"] == [
        f"capability file {path_uri(agent / 'skills/huge/SKILL.md')} exceeds the 1048576-byte limit",
        (
            f"capability file {path_uri(agent / 'skills/not-text/SKILL.md')} is not UTF-8: "
            "invalid utf-8 sequence of 1 bytes from index 10"
        ),
    ]


@pytest.mark.statement("D9")
def test_a_root_and_a_reply_have_a_size(start: Start, here: Path) -> None:
    for number in range(20):
        skill(here / f"large/{number:02}", "x", "#" * (1 << 20 - 1))
        write(here / f"large/{number:02}/SKILL.md", "x" * (1 << 20))
    client = start()
    root = {"id": "r", "path": path_uri(here / "large")}
    found = client.call("capabilityRoots/discoverV1", {"roots": [root] * 3})["roots"]
    assert [len(each["skills"]) for each in found] == [16, 16, 0]
    assert "exceeds the 16777216-byte limit" in found[0]["warnings"][0]
    assert "exceeds the 0-byte limit" in found[2]["warnings"][0]


@pytest.mark.statement("D12")
def test_a_sandbox_limits_what_is_found(start: Start, here: Path) -> None:
    home, agent, _ = make_everything(here)
    client = start()

    def names(*entries: Json) -> list[str]:
        sandbox = context(restricted(*entries), cwd=here)
        return [each["name"] for each in installed(client, sandbox=sandbox)["skills"]]

    assert {"one", "users"} <= set(names(READ_ROOT))
    assert names(at(home / ".agents", "read")) == ["users"]
    assert names() == []
    assert "one" not in names(READ_ROOT, at(agent / "skills/one", "deny"))
    denied = context(restricted(READ_ROOT, at(here / "outside", "deny")), cwd=here)
    found = discovered(client, agent / "skills", sandbox=denied)
    assert "linked" not in json.dumps([each["instructions"]["path"] for each in found["skills"]])
    assert any("Permission denied (os error 13)" in warning for warning in found["warnings"])
    assert "linked" in json.dumps(discovered(client, agent / "skills"))


@pytest.mark.statement("D12")
def test_a_sandbox_of_installed_plugins_needs_its_folder(start: Start, here: Path) -> None:
    sandbox = context(restricted(READ_ROOT), cwd=here)
    del sandbox["cwd"]
    failure = start().refused("capabilities/discoverV2", {"cwd": path_uri(here), "sandbox": sandbox})
    assert (failure.code, failure.message) == (-32602, "missing field `cwd`")


@pytest.mark.statement("D12", "X16")
def test_a_daemon_that_requires_sandboxes_finds_everything_that_it_may_read(start: Start, here: Path) -> None:
    make_everything(here)
    client = start("--require-sandbox")
    assert installed(client)["plugins"]
    assert layers(client, here, ["model"])
    disabled = context({"type": "disabled"}, cwd=here)
    refused = client.refused("capabilities/discoverV2", {"cwd": path_uri(here), "sandbox": disabled})
    assert "requires a sandbox" in refused.message


# -- capabilities/discoverV2


@pytest.mark.statement("D10")
def test_installed_plugins_are_found_in_their_newest_version(start: Start, here: Path) -> None:
    _, agent, _ = make_everything(here)
    found = {each["id"]: each for each in installed(start())["plugins"]}
    assert list(found) == sorted(found)
    assert set(found) == {
        f"{name}@market"
        for name in ("declared", "inline", "local", "missing", "remote", "remote-broken", "usual", "versions")
    }
    assert found["versions@market"]["version"] == "1.10.0"
    assert found["local@market"]["version"] == "local"
    assert found["remote@market"]["remotePluginId"] == "plugin_1"
    assert found["remote-broken@market"]["remotePluginId"] is None
    assert found["usual@market"]["displayName"] == "Usual"
    assert found["declared@market"]["root"] == path_uri(agent / "plugins/cache/market/declared/1.0.0")
    files = {name: plugin["files"] for name, plugin in found.items()}
    assert files["declared@market"]["mcpConfig"]["contents"] == '{"mcp": 1}'
    assert files["declared@market"]["appsConfig"]["contents"] == '{"apps": 1}'
    assert files["usual@market"]["mcpConfig"]["contents"] == '{"mcp": 2}'
    assert files["usual@market"]["appsConfig"]["contents"] == '{"apps": 2}'
    assert files["missing@market"]["mcpConfig"] is None
    assert files["inline@market"]["mcpConfig"]["contents"] == '{"z":{"url":"ü"},"a":{}}'
    assert [each["name"] for each in found["usual@market"]["skills"]] == ["usual:first"]
    assert "discoveryRoot" not in found["usual@market"]["skills"][0]


@pytest.mark.statement("D11")
def test_skills_are_described_by_their_front_matter(start: Start, here: Path) -> None:
    _, agent, _ = make_everything(here)
    found = installed(start())
    skills = {each["name"]: each for each in found["skills"]}
    assert skills["one"] == {
        "name": "one",
        "description": "What one is for",
        "shortDescription": "In short",
        "path": path_uri(agent / "skills/one/SKILL.md"),
        "discoveryRoot": {"id": "codex-home-skills", "path": path_uri(agent / "skills")},
        "dependencies": {
            "tools": [
                {
                    "type": "mcp", "value": "docs", "description": None, "transport": None, "command": None,
                    "url": "http://d/", "oauthCallbackPort": 8080,
                }
            ]
        },
        "policy": {"allowImplicitInvocation": False, "products": ["codex"]},
    }  # fmt: skip
    assert (skills["broken-metadata"]["dependencies"], skills["broken-metadata"]["policy"]) == (None, None)
    assert skills["prose"]["description"] == "Build for AWS: it's ECS"
    assert skills["flow"]["description"] == "[unclosed"
    assert skills["Folder name"]["description"] == "1.50"
    assert skills["users"]["discoveryRoot"]["id"] == "user-agent-skills"
    assert {"hidden", "deep", "linked", "pack:packed"} <= set(skills)
    assert not {"a", "x", "projects", "too-deep", "n" * 65} & set(skills)
    assert LOST in found["warnings"]


@pytest.mark.statement("D11")
def test_yaml_that_unfolds_without_end_does_no_harm(start: Start, here: Path) -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{n}: &{n} [*{p}, *{p}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=False)
    )
    deep = "[" * 10_000
    write(here / "home/.codex/skills/bomb/SKILL.md", f"---\nname: bomb\ndescription: b\n{bomb}---\n")
    write(here / "home/.codex/skills/self/SKILL.md", "---\n&m\nname: self\ndescription: b\nm: *m\n---\n")
    write(here / "home/.codex/skills/deep/SKILL.md", f"---\nname: deep\ndescription: b\nd: {deep}\n---\n")
    write(here / "home/.codex/skills/keys/SKILL.md", f"---\nname: keys\ndescription: b\n{'? ' * 8000}\n---\n")
    write(here / "home/.codex/skills/long/SKILL.md", f"---\nname: long\ndescription: {'d' * 17_000}\n---\n")
    client = start()
    found = installed(client)
    assert {each["name"] for each in found["skills"]} == {"bomb", "self", "deep"}
    assert LOST in found["warnings"]


@pytest.mark.statement("D10")
def test_what_is_new_is_found_at_once(start: Start, here: Path) -> None:
    client = start()
    assert installed(client) == {"plugins": [], "skills": [], "warnings": []}
    skill(here / "home/.codex/skills/new", "new")
    assert [each["name"] for each in installed(client)["skills"]] == ["new"]


@pytest.mark.statement("D10")
def test_a_reply_has_at_most_4_mib(start: Start, here: Path) -> None:
    # Of four bytes each: it is the characters that cost the parser its time.
    for number in range(80):
        name = f"s{number:03}"
        text = f"---\nname: {name}\ndescription: {'😀' * 16_000}\n---\n"
        write(here / "home/.codex/skills" / name / "SKILL.md", text)
    found = installed(start())
    size = len(json.dumps(found["skills"], ensure_ascii=False).encode())
    assert (4 << 20) - 70_000 < size <= 4 << 20
    assert [each["name"] for each in found["skills"][:2]] == ["s000", "s001"]
    assert found["warnings"] == ["capability discovery size limit reached"]


# -- environmentConfig/read


@pytest.mark.statement("D5")
def test_layers_have_the_keys_that_were_asked_for(start: Start, here: Path) -> None:
    _, agent, project = make_everything(here)
    client = start()
    user, of_project = f"user ({agent}/config.toml)", f"project ({project}/.codex/config.toml)"
    assert layers(client, project, ["mcp_servers"]) == [(user, {"mcp_servers": {"u": {"url": "http://u/"}}})]
    assert layers(client, project, ["a", "b"]) == [(user, {"a": {"b": 1}}), (of_project, {"a": {"b": 2}})]
    assert layers(client, project / "below", ["a", "b"])[2] == (
        f"project ({project}/below/.codex/config.toml)", {"a": 3}
    )  # fmt: skip
    assert layers(client, project, ["a", "c.d"], ["nothing"])[0] == (user, {"a": {"c.d": [1.5, {"x": "y"}]}})
    assert layers(client, project, ["nothing"]) == []


@pytest.mark.statement("D13")
def test_a_project_counts_only_if_its_folder_is_trusted(start: Start, here: Path) -> None:
    _home, agent, project = make_everything(here)
    client = start()

    def sources(cwd: Path) -> list[str]:
        return [source.split()[0] for source, _ in layers(client, cwd, ["a"])]

    assert sources(here / "untrusted") == ["user"]
    assert sources(project) == ["user", "project"]
    write(project / "below/.codex/config.toml", "a = [")
    assert "config.toml" in client.refused("environmentConfig/read", asked(project / "below")).message
    config = (agent / "config.toml").read_text()
    write(agent / "config.toml", f'{config}[projects."{project}/below"]\ntrust_level = "untrusted"\n')
    assert sources(project / "below") == ["user", "project"]
    (project / ".git/HEAD").unlink()
    assert sources(project / "below") == ["user"], "an empty .git made it a project"


def asked(cwd: Path) -> Json:
    return {"cwd": path_uri(cwd), "configPaths": [["a"]], "requirementsPaths": []}


@pytest.mark.statement("D13")
def test_hooks_of_a_linked_worktree_are_those_of_the_main_checkout(start: Start, here: Path) -> None:
    write(here / "home/.codex/config.toml", f'[projects."{here}/main"]\ntrust_level = "trusted"\n')
    write(here / "main/.git/HEAD")
    write(here / "main/.codex/config.toml", "a = 1\nhooks.main = true\n")
    write(here / "tree/.git", f"gitdir: {here}/main/.git/worktrees/tree\n")
    write(here / "tree/.codex/config.toml", "a = 2\nhooks.tree = true\n")
    assert layers(start(), here / "tree", ["a"], ["hooks"]) == [
        (f"project ({here}/tree/.codex/config.toml)", {"a": 2}),
        (f"project ({here}/main/.codex/config.toml)", {"hooks": {"main": True}}),
    ]


@pytest.mark.statement("D14")
def test_a_file_that_is_no_toml_is_named(start: Start, here: Path) -> None:
    client = start()
    config = here / "home/.codex/config.toml"
    for content, reason in {
        b"a = [": "Invalid value",
        b"a = '\xff'": "is not UTF-8",
        b"a = 1\n#" + b"x" * (4 << 20): "has more than 4194304 bytes",
        b"projects = 5": "`projects`",
        b"project_root_markers = [1]": "must be an array of strings",
        b".".join([b"a"] * 5000) + b" = 1": "has too many levels",
    }.items():
        write(config, content)
        failure = client.refused("environmentConfig/read", asked(here))
        assert failure.code == -32603
        assert failure.message.startswith("failed to load executor-local config: ")
        assert reason in failure.message
    config.unlink()
    config.mkdir()
    assert str(config) in client.refused("environmentConfig/read", asked(here)).message


@pytest.mark.statement("D5", "D11")
@pytest.mark.skipif(os.geteuid() != 0, reason="a folder in place of /etc needs a mount")
def test_layers_and_skills_of_the_system(start: Start, here: Path) -> None:
    etc = here / "etc"
    write(etc / "codex/config.toml", "a = 1\n")
    write(etc / "codex/managed_config.toml", 'a = 2\nsandbox_mode = "workspace-write"\n')
    write(etc / "codex/requirements.toml", "b = 3\n")
    skill(etc / "codex/skills/systems", "systems")
    for name in ("passwd", "group", "ld.so.cache"):
        shutil.copy(Path("/etc") / name, etc)
    write(here / "home/.codex/config.toml", "a = 4\n")
    mounted = 'mount --bind "$0" /etc && exec "$@"'
    client = start(prefix=("unshare", "--mount", "/bin/sh", "-c", mounted, str(etc)))

    params = asked(here) | {"requirementsPaths": [["b"], ["allowed_sandbox_modes"]]}
    found = client.call("environmentConfig/read", params)

    def seen(stack: Json) -> list[tuple[str, str, Json]]:
        return [(each["source"], each["baseDir"], tomllib.loads(each["toml"])) for each in stack["layers"]]

    user = here / "home/.codex"
    assert seen(found["config"]) == [
        ("system (/etc/codex/config.toml)", "file:///etc/codex", {"a": 1}),
        (f"user ({user}/config.toml)", path_uri(user), {"a": 4}),
        ("legacy managed_config.toml (/etc/codex/managed_config.toml)", "file:///etc/codex", {"a": 2}),
    ]
    assert seen(found["requirements"]) == [
        ("/etc/codex/requirements.toml", "file:///etc/codex", {"b": 3}),
        ("/etc/codex/managed_config.toml", "file:///etc/codex",
         {"allowed_sandbox_modes": ["read-only", "workspace-write"]}),
    ]  # fmt: skip
    assert found["config"]["cloudInsertionIndex"] == found["requirements"]["cloudInsertionIndex"] == 1
    [systems] = installed(client)["skills"]
    assert (systems["name"], systems["discoveryRoot"]["id"]) == ("systems", "system-skills")
