"""`environment/*`, discovery, and what the executor says of itself
(`docs/protocol.md`, "Environment and discovery").
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from execprotocol.model import EXTENSION, U64, Params, PathUri, WireError, WrittenUri


class NoParams(Params):
    """Absent, null or `{}`; anything else does not decode."""


class Shell(TypedDict):
    """The login shell of the account that the daemon runs as."""

    name: str
    """The last part of the path, such as `bash`."""

    path: str
    """The native path of the program, such as `/bin/bash`; not a URI."""


class Capabilities(TypedDict):
    """What this executor can do beyond the basic methods. A client treats an absent member as false."""

    networkProxyLaunch: bool
    """Whether `process/start` takes `networkProxy`."""

    networkProxyReviewDomains: bool
    """Whether such a proxy asks the client about domains that are in none of its lists."""

    credentialMasking: bool
    """Whether such a proxy can keep credentials from the process that uses them."""

    credentialMaskingCustomProviders: bool
    """Whether masking also covers providers that the client defines."""

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
    """Whether `fs/open` takes a sandbox context that has to be enforced."""

    fileWriteStreaming: bool
    """Whether `fs/open` takes the mode `replace`, and `fs/writeBlock` is served."""

    shellSnapshotV2: bool
    """Whether `shellSnapshot` of `process/start` has an effect."""

    linuxRootWritePreservesDevices: bool
    """Whether a sandbox that may write to the root folder keeps the host's devices."""

    linuxApprovedRootWritePreservesRestrictions: bool
    """Whether approved writing to the root folder leaves the other limits of a sandbox in place."""

    windowsMxc: bool
    """Whether the `mxc` sandbox of Windows is there; always false on Linux."""

    execserver: NotRequired[Annotated[list[str], EXTENSION]]
    """What this daemon serves beyond the reference, in the order of the text: methods, such as `fs/digest`,
    and members of the parameters of others, such as `process/start.size`."""


class EnvironmentInfo(TypedDict):
    """Describe the executor's host: shell, folders, system and capabilities.

    It stays the same for as long as the daemon runs.
    """

    shell: Shell
    """The login shell of the account, for clients that wrap commands in one."""

    executorVersion: str
    """The version of this daemon."""

    providerId: str
    """An opaque name of this run of the daemon: two equal ones are the same executor."""

    cwd: WrittenUri
    """The folder in which the daemon was started."""

    userHomeDir: WrittenUri
    """The home folder: `HOME` of the daemon, else that of the account."""

    platformOs: Literal["linux"]
    """The operating system of the executor."""

    prependPathDirs: list[WrittenUri]
    """Folders that a client should put in front of `PATH`; this executor names none."""

    temporaryDirectories: list[WrittenUri]
    """Every folder for temporary files, `tempDir` among them."""

    tempDir: WrittenUri
    """The folder for temporary files: an absolute `TMPDIR` of the daemon, else `/tmp`."""

    capabilities: Capabilities
    """What this executor can do beyond the basic methods."""


class EnvironmentStatus(TypedDict):
    """Say whether the executor can serve.

    The answer to a request is the proof: there is only one status.
    """

    status: Literal["ready"]
    """The one status there is."""


class Health(TypedDict):
    """Say how the daemon is, in numbers.

    They are those of the whole daemon, never ids, names or paths. It may be asked for before
    `initialize`, and a connection that asks for nothing else leaves no session behind.
    """

    status: Literal["ok", "stopping"]
    """`stopping` once the service has begun to end, `ok` before."""

    version: str
    """The version of the daemon."""

    pid: int
    """The process id of the server on the executor."""

    uptimeSeconds: float
    """How long the server has run, in seconds."""

    connections: U64
    """How many connections are open, the one that asks among them."""

    sessions: U64
    """How many sessions there are, attached or waiting for their client."""

    processes: U64
    """How many processes are not closed."""

    retainedOutputBytes: U64
    """How many bytes of output are kept for all processes."""

    retainedOutputLimitBytes: U64
    """What that may grow to before the oldest output is dropped (`--spool-max-bytes`)."""

    queuedInputBytes: U64
    """How many bytes of input were accepted for processes that have not read them yet."""

    lostOutputBytes: U64
    """How many bytes of output readers have missed since the start, because they were dropped."""


TomlPath = Annotated[
    list[str], Meta(min_length=1, extra={"error": "TOML paths must contain at least one key segment"})
]


class ConfigReadParams(Params):
    """Read the named keys out of the executor's own configuration layers.

    Only what is named is given, so that a client learns nothing else. This executor keeps no
    configuration for clients: its lists of layers are empty.
    """

    further_schema = {
        "anyOf": [
            {"properties": {"configPaths": {"minItems": 1}}},
            {"properties": {"requirementsPaths": {"minItems": 1}}},
        ]
    }

    cwd: PathUri
    """The folder whose configuration is meant; it need not exist."""

    config_paths: list[TomlPath]
    """Keys to read from the configuration, each a TOML key path of at least one segment."""

    requirements_paths: list[TomlPath]
    """Keys to read from the requirements, spelled in the same way. One of both lists must name a key."""

    def __post_init__(self) -> None:
        """Refuse a projection of nothing."""
        if not self.config_paths and not self.requirements_paths:
            raise WireError("at least one config or requirements path is required")


class ConfigLayers(TypedDict):
    """Configuration layers, the one with the least say first."""

    layers: list[dict[str, Any]]
    """The layers in which one of the keys is set, with those keys only."""

    cloudInsertionIndex: U64
    """The place in `layers`, counted from 0, at which a client inserts layers of its own service."""


class ConfigReadResult(TypedDict):
    """What the executor's configuration says about the keys."""

    userHomeDir: WrittenUri
    """The home folder, as `environment/info` names it."""

    codexHomeDir: WrittenUri
    """The folder of the agent's own files: `CODEX_HOME`, else `.codex` in the home folder."""

    hostname: str
    """The host name of the executor."""

    config: ConfigLayers
    """The layers of the configuration."""

    requirements: ConfigLayers
    """The layers of the requirements, which the configuration has to meet."""


class CapabilityRoot(Params):
    """A folder that may hold plugins or skills. Members beside `id` are not looked at."""

    id: str
    """The client's own name for the folder."""


class DiscoverV1Params(Params):
    """Look for plugins and skills below the given roots.

    This executor offers none, so nothing is looked for and nothing is found.
    """

    roots: list[CapabilityRoot]
    """The folders to search; the list may be empty."""


class DiscoverV1Result(TypedDict):
    """What was found, by root."""

    roots: list[dict[str, Any]]
    """One object for each root that holds something; empty on this executor."""


class DiscoverV2Params(Params):
    """Look for plugins and skills that apply to a folder.

    This executor offers none, so nothing is looked for and nothing is found.
    """

    cwd: PathUri
    """The folder in which the agent works; it need not exist."""


class DiscoverV2Result(TypedDict):
    """What was found for the folder."""

    plugins: list[dict[str, Any]]
    """The plugins that apply; empty on this executor."""

    skills: list[dict[str, Any]]
    """The skills that apply; empty on this executor."""

    warnings: list[str]
    """Sentences for people about what could not be read."""


class OpenRpcDocument(TypedDict):
    """Describe all methods and events as an OpenRPC document.

    It may be asked for before `initialize`. The document is the same as `schemas/openrpc.json` of
    this version; each message also has a JSON Schema of its own in that folder.
    """

    openrpc: str
    """The version of the OpenRPC specification that the document follows."""

    info: dict[str, Any]
    """The title, the version of the daemon and a description of the wire."""

    methods: list[dict[str, Any]]
    """All methods, with parameters in the order of the array form, results and errors."""

    components: dict[str, Any]
    """The schemas of the objects that the methods share, by name."""
