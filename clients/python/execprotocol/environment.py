"""`environment/*`, `capabilities/*`, `rpc.discover` and `server/health`
(`docs/protocol.md`, "Environment and discovery").
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from execprotocol.model import EXTENSION, U64, Params, PathUri, WireError, WrittenUri
from execprotocol.sandbox import SandboxContext


class NoParams(Params):
    """Absent, null or `{}`; anything else is refused."""


class Shell(TypedDict):
    """The login shell of the account that the daemon runs as."""

    name: str
    """The last part of the path, such as `bash`."""

    path: str
    """The native path of the program, such as `/bin/bash`; not a URI."""


class Capabilities(TypedDict):
    """The capabilities of this executor beyond the basic methods. Clients treat an absent member as false."""

    networkProxyLaunch: bool
    """Whether `process/start` takes `networkProxy`."""

    networkProxyReviewDomains: bool
    """Whether such a proxy asks the client about unlisted domains."""

    credentialMasking: bool
    """Whether such a proxy can hide credentials from the process that uses them."""

    credentialMaskingCustomProviders: bool
    """Whether masking supports providers that the client defines."""

    capabilityDiscoverySandbox: bool
    """Whether capability discovery takes a sandbox context."""

    fsWatchMissing: bool
    """Whether `fs/watchMissing` is served."""

    capabilityDiscoveryV2: bool
    """Whether `capabilities/discoverV2` finds the plugins and skills on this host."""

    environmentConfigRead: bool
    """Whether `environmentConfig/read` is served."""

    httpHeaderEnvVars: bool
    """Whether headers of `http/request` may name variables of the executor's environment."""

    sandboxedFileStreaming: bool
    """Whether `fs/open` takes a sandbox context with limits."""

    fileWriteStreaming: bool
    """Whether `fs/open` takes the mode `replace`, and `fs/writeBlock` is served."""

    shellSnapshotV2: bool
    """Whether `shellSnapshot` of `process/start` has an effect."""

    linuxRootWritePreservesDevices: bool
    """Whether a sandbox with write access to the root folder keeps the host's devices."""

    linuxApprovedRootWritePreservesRestrictions: bool
    """Whether approved write access to the root folder keeps the other limits of a sandbox."""

    windowsMxc: bool
    """Whether the `mxc` sandbox of Windows is available; always false on Linux."""

    execserver: NotRequired[Annotated[list[str], EXTENSION]]
    """The daemon's extensions to the reference, sorted: methods such as `fs/digest`, and parameters of other
    methods such as `process/start.size`."""


class EnvironmentInfo(TypedDict):
    """Describe the executor's host: shell, folders, system and capabilities.

    The description does not change while the daemon runs.
    """

    shell: Shell
    """The login shell of the account, for clients that wrap commands in one."""

    executorVersion: str
    """The version of this daemon."""

    providerId: str
    """An opaque name of this run of the daemon; equal names mean the same executor."""

    cwd: WrittenUri
    """The folder in which the daemon was started."""

    userHomeDir: WrittenUri
    """The home folder: `HOME` of the daemon, else that of the account."""

    platformOs: Literal["linux"]
    """The operating system of the executor."""

    prependPathDirs: list[WrittenUri]
    """Folders that a client should prepend to `PATH`; empty on this executor."""

    temporaryDirectories: list[WrittenUri]
    """All folders for temporary files, including `tempDir`."""

    tempDir: WrittenUri
    """The folder for temporary files: an absolute `TMPDIR` of the daemon, else `/tmp`."""

    capabilities: Capabilities
    """The capabilities of this executor beyond the basic methods."""

    requireSandbox: NotRequired[Annotated[bool, EXTENSION]]
    """Whether commands and changes of files without a sandbox that limits files are refused, by the setting
    `require_sandbox`."""


class EnvironmentStatus(TypedDict):
    """Report whether the executor can serve.

    There is only one status: the answer itself shows that the executor is ready.
    """

    status: Literal["ready"]
    """The only status."""


class AuditHealth(TypedDict):
    """The state of the audit folder."""

    acts: U64
    """The number of the newest act that is written down."""

    problem: str | None
    """Why acts cannot be written down at present; null if they can."""


class Health(TypedDict):
    """Report the state of the daemon in numbers (`docs/how-to/monitor.md`).

    The numbers are of the whole daemon; there are no ids, names or paths. The request is allowed before
    `initialize`, and creates no session.
    """

    status: Literal["ok", "draining", "stopping"]
    """`draining` while no new sessions are opened, `stopping` once the service shuts down, else `ok`."""

    version: str
    """The version of the daemon."""

    pid: int
    """The process id of the server on the executor."""

    uptimeSeconds: float
    """How long the server has run, in seconds."""

    connections: U64
    """The number of open connections, including this one."""

    sessions: U64
    """The number of sessions, attached and detached."""

    processes: U64
    """The number of processes that are not closed."""

    retainedOutputBytes: U64
    """Bytes of retained output of all processes."""

    retainedOutputLimitBytes: U64
    """The limit above which the oldest output is dropped (`--spool-max-bytes`)."""

    queuedInputBytes: U64
    """Bytes of accepted input that processes have not read yet."""

    lostOutputBytes: U64
    """Bytes of output since the start that readers missed because they were dropped."""

    requireSandbox: bool
    """Whether commands and changes of files without a sandbox that limits files are refused, by the setting
    `require_sandbox`."""

    audit: NotRequired[AuditHealth]
    """The audit folder. Missing if the daemon has none (setting `audit_dir`)."""


TomlPath = Annotated[
    list[str], Meta(min_length=1, extra={"error": "TOML paths must contain at least one key segment"})
]


class ConfigReadParams(Params):
    """Read keys of the agent's configuration on this host.

    Only the named keys are returned. A layer of a project counts if the system, the user or the administrator
    trusts its folder. A file that is no TOML is error -32603, which names it.
    """

    further_schema = {
        "anyOf": [
            {"properties": {"configPaths": {"minItems": 1}}},
            {"properties": {"requirementsPaths": {"minItems": 1}}},
        ]
    }

    cwd: PathUri
    """The folder of the configuration; it need not exist."""

    config_paths: list[TomlPath]
    """Keys to read from the configuration, each a TOML key path of at least one segment."""

    requirements_paths: list[TomlPath]
    """Keys to read from the requirements, in the same form. One of the two lists must have a key."""

    def __post_init__(self) -> None:
        """Refuse a request without keys."""
        if not self.config_paths and not self.requirements_paths:
            raise WireError("at least one config or requirements path is required")


class ConfigLayer(TypedDict):
    """One file of configuration."""

    source: str
    """The kind and the path of the file, for people."""

    baseDir: WrittenUri
    """The folder from which relative paths in it count."""

    toml: str
    """A TOML document with the named keys."""


class ConfigLayers(TypedDict):
    """Configuration layers, in ascending order of precedence."""

    layers: list[ConfigLayer]
    """The layers that set one of the keys, with those keys only."""

    cloudInsertionIndex: U64
    """The index in `layers` at which a client inserts layers of its own service."""


class ConfigReadResult(TypedDict):
    """The values of the keys."""

    userHomeDir: WrittenUri
    """The home folder, as in `environment/info`."""

    codexHomeDir: WrittenUri
    """The folder of the agent's own files: `CODEX_HOME`, else `.codex` in the home folder."""

    hostname: str
    """The host name of the executor."""

    config: ConfigLayers
    """The layers of the configuration."""

    requirements: ConfigLayers
    """The layers of the requirements that the configuration must meet."""


class CapabilityRoot(Params):
    """A folder that may contain a plugin or skills."""

    id: str
    """The client's name for the folder."""

    path: PathUri
    """The folder; links are followed."""

    sandbox: SandboxContext | None = None
    """Limits for reading it."""


class DiscoverV1Params(Params):
    """Find the files of a plugin and of skills below each of some folders.

    A folder is searched for 10 seconds, six levels deep, through 2000 folders and 20,000 entries. A file has
    at most 1 MiB, the files of a folder 16 MiB, those of a reply 32 MiB. What is beyond a limit, cannot be
    read or is not UTF-8 becomes a warning.
    """

    roots: list[CapabilityRoot]
    """The folders to search: at most 128."""


class TextFile(TypedDict):
    """A file in UTF-8."""

    path: WrittenUri
    """Where it is."""

    contents: str
    """Its whole text."""


class PluginFiles(TypedDict):
    """The files of a plugin."""

    manifest: TextFile
    """`plugin.json` in `.codex-plugin`, `.claude-plugin` or `.cursor-plugin`."""

    mcpConfig: TextFile | None
    """MCP servers: the file that `mcpServers` of the manifest names, else `.mcp.json`. For
    `capabilities/discoverV2` also servers in the manifest itself, with the manifest's path."""

    appsConfig: TextFile | None
    """Connectors: the file that `apps` of the manifest names, else `.app.json`."""


class SkillFiles(TypedDict):
    """The files of a skill."""

    instructions: TextFile
    """Its `SKILL.md`: what to do."""

    metadata: TextFile | None
    """`agents/openai.yaml` beside it."""


class CapabilityRootFiles(TypedDict):
    """What a folder has."""

    id: str
    """The client's name for the folder."""

    path: WrittenUri
    """The folder that was searched."""

    plugin: PluginFiles | None
    """The plugin whose folder this is."""

    skills: list[SkillFiles]
    """All skills below it."""

    namespaceManifests: list[TextFile]
    """The manifests of plugins in, below or above the folder, from which skills get their namespace."""

    warnings: list[str]
    """Messages for people about what could not be read."""

    error: str | None
    """Why the folder could not be searched at all."""


class DiscoverV1Result(TypedDict):
    """The files by folder."""

    roots: list[CapabilityRootFiles]
    """One object for each folder, in the order of the request."""


class DiscoverV2Params(Params):
    """Find the plugins that are installed on this host, and the skills of its user and its system.

    These are below `plugins/cache` and `skills` of `CODEX_HOME`, `.agents/skills` of the home folder and
    `/etc/codex/skills`. The search has the limits of `capabilityRoots/discoverV1` and ends after 10 seconds;
    the YAML of a skill has at most 16 KiB, and a reply 2048 plugins and skills and 4 MiB.
    """

    cwd: PathUri
    """The folder in which the agent works; it need not exist. Without effect: clients find the skills of a
    project by themselves."""

    sandbox: SandboxContext | None = None
    """Limits for reading; its `cwd` is required."""


class SkillTool(TypedDict):
    """A tool that a skill needs."""

    type: str
    """Its kind, such as `mcp`."""

    value: str
    """Its name there."""

    description: str | None
    """What it is for."""

    transport: str | None
    """How to reach it."""

    command: str | None
    """The command that starts it."""

    url: str | None
    """Its address, if any."""

    oauthCallbackPort: int | None
    """The port for a login in the browser."""


class SkillDependencies(TypedDict):
    """What a skill needs."""

    tools: list[SkillTool]
    """The tools; at least one."""


class SkillPolicy(TypedDict):
    """When a skill may be used."""

    allowImplicitInvocation: bool | None
    """Whether the agent may use it unasked; null if that is not said."""

    products: list[str]
    """The products for which it is: `chatgpt`, `codex`, `atlas`; all if the list is empty."""


class DiscoveryRoot(TypedDict):
    """Where a skill was found."""

    id: str
    """`codex-home-skills`, `user-agent-skills` or `system-skills`."""

    path: WrittenUri
    """The folder that was searched."""


class InstalledSkill(TypedDict):
    """A skill, by the front matter of its `SKILL.md` and its `agents/openai.yaml`."""

    name: str
    """Its name, after that of its plugin and a colon if it has one."""

    description: str
    """What it is for."""

    shortDescription: str | None
    """The same in a few words."""

    path: WrittenUri
    """The path of its `SKILL.md`."""

    discoveryRoot: NotRequired[DiscoveryRoot]
    """Where it was found; absent for the skill of a plugin."""

    dependencies: SkillDependencies | None
    """What it needs."""

    policy: SkillPolicy | None
    """When it may be used."""


class InstalledPlugin(TypedDict):
    """An installed plugin in its newest version."""

    id: str
    """Its name and its marketplace: `NAME@MARKETPLACE`."""

    displayName: str
    """Its name for people."""

    remotePluginId: str | None
    """The marketplace's own id."""

    version: str
    """The version, or `local`."""

    root: WrittenUri
    """The folder of this version."""

    files: PluginFiles
    """Its files, with their texts."""

    skills: list[InstalledSkill]
    """Its skills, below its folder."""


class DiscoverV2Result(TypedDict):
    """What is installed."""

    plugins: list[InstalledPlugin]
    """The plugins, by id."""

    skills: list[InstalledSkill]
    """The skills outside plugins: those of `CODEX_HOME`, of the user, of the system."""

    warnings: list[str]
    """Messages for people about what could not be read."""


class OpenRpcDocument(TypedDict):
    """Describe all methods and events as an OpenRPC document.

    The request is allowed before `initialize`. The document is `schemas/openrpc.json` of this version;
    that folder also has a JSON Schema for each message.
    """

    openrpc: str
    """The version of the OpenRPC specification that the document follows."""

    info: dict[str, Any]
    """The title, the version of the daemon, and a description of the wire."""

    methods: list[dict[str, Any]]
    """All methods, with parameters in the order of the array form, results and errors."""

    components: dict[str, Any]
    """The schemas of shared objects, by name."""
