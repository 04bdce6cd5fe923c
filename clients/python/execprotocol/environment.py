"""`environment/*`, `capabilities/*`, `rpc.discover` and `server/health`
(`docs/protocol.md`, "Environment and discovery").
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from execprotocol.model import EXTENSION, U64, Params, PathUri, WireError, WrittenUri


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


class Health(TypedDict):
    """Report the state of the daemon in numbers (`docs/how-to/monitor.md`).

    The numbers are of the whole daemon; there are no ids, names or paths. The request is allowed before
    `initialize`, and creates no session.
    """

    status: Literal["ok", "stopping"]
    """`stopping` once the service is shutting down, else `ok`."""

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


TomlPath = Annotated[
    list[str], Meta(min_length=1, extra={"error": "TOML paths must contain at least one key segment"})
]


class ConfigReadParams(Params):
    """Read keys of the executor's own configuration layers.

    Only the named keys are returned. This executor keeps no configuration for clients: its lists of
    layers are empty.
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


class ConfigLayers(TypedDict):
    """Configuration layers, in ascending order of precedence."""

    layers: list[dict[str, Any]]
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
    """A folder that may contain plugins or skills. Members beside `id` are ignored."""

    id: str
    """The client's name for the folder."""


class DiscoverV1Params(Params):
    """Find plugins and skills below the given roots.

    This executor offers none: the result is empty.
    """

    roots: list[CapabilityRoot]
    """The folders to search; the list may be empty."""


class DiscoverV1Result(TypedDict):
    """The plugins and skills by root."""

    roots: list[dict[str, Any]]
    """One object for each root that contains any; empty on this executor."""


class DiscoverV2Params(Params):
    """Find plugins and skills that apply to a folder.

    This executor offers none: the result is empty.
    """

    cwd: PathUri
    """The folder in which the agent works; it need not exist."""


class DiscoverV2Result(TypedDict):
    """The plugins and skills of the folder."""

    plugins: list[dict[str, Any]]
    """The plugins that apply; empty on this executor."""

    skills: list[dict[str, Any]]
    """The skills that apply; empty on this executor."""

    warnings: list[str]
    """Messages for people about errors while reading."""


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
