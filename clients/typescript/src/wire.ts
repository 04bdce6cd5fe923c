// Generated from schemas/ by tools/generate.mjs: do not edit. `npm run generate` writes it anew.

/** The result of an edit. */
export interface AppliedEdit {
  /** The path of the edit. */
  path: string;
  /** The SHA-256 of the file in 64 hexadecimal digits; null if the file was removed. */
  sha256: string | null;
}

/** The state of the audit folder. */
export interface AuditHealth {
  /** The number of the newest act that is written down. */
  acts: number;
  /** Why acts cannot be written down at present; null if they can. */
  problem: string | null;
}

/** The capabilities of this executor beyond the basic methods. Clients treat an absent member as false. */
export interface Capabilities {
  /** Whether `process/start` takes `networkProxy`. */
  networkProxyLaunch: boolean;
  /** Whether such a proxy asks the client about unlisted domains. */
  networkProxyReviewDomains: boolean;
  /** Whether such a proxy can hide credentials from the process that uses them. */
  credentialMasking: boolean;
  /** Whether masking supports providers that the client defines. */
  credentialMaskingCustomProviders: boolean;
  /** Whether capability discovery takes a sandbox context. */
  capabilityDiscoverySandbox: boolean;
  /** Whether `fs/watchMissing` is served. */
  fsWatchMissing: boolean;
  /** Whether `capabilities/discoverV2` finds the plugins and skills on this host. */
  capabilityDiscoveryV2: boolean;
  /** Whether `environmentConfig/read` is served. */
  environmentConfigRead: boolean;
  /** Whether headers of `http/request` may name variables of the executor's environment. */
  httpHeaderEnvVars: boolean;
  /** Whether `fs/open` takes a sandbox context with limits. */
  sandboxedFileStreaming: boolean;
  /** Whether `fs/open` takes the mode `replace`, and `fs/writeBlock` is served. */
  fileWriteStreaming: boolean;
  /** Whether `shellSnapshot` of `process/start` has an effect. */
  shellSnapshotV2: boolean;
  /** Whether a sandbox with write access to the root folder keeps the host's devices. */
  linuxRootWritePreservesDevices: boolean;
  /** Whether approved write access to the root folder keeps the other limits of a sandbox. */
  linuxApprovedRootWritePreservesRestrictions: boolean;
  /** Whether the `mxc` sandbox of Windows is available; always false on Linux. */
  windowsMxc: boolean;
  /** The daemon's extensions to the reference, sorted: methods such as `fs/digest`, and parameters of other methods such as `process/start.size`. */
  execserver?: string[];
}

/** A folder that may contain a plugin or skills. */
export interface CapabilityRoot {
  /** The client's name for the folder. */
  id: string;
  /** The folder; links are followed. */
  path: string;
  /** Limits for reading it. */
  sandbox?: SandboxContext | null;
}

/** What a folder has. */
export interface CapabilityRootFiles {
  /** The client's name for the folder. */
  id: string;
  /** The folder that was searched. */
  path: string;
  /** The plugin whose folder this is. */
  plugin: PluginFiles | null;
  /** All skills below it. */
  skills: SkillFiles[];
  /** The manifests of plugins in, below or above the folder, from which skills get their namespace. */
  namespaceManifests: TextFile[];
  /** Messages for people about what could not be read. */
  warnings: string[];
  /** Why the folder could not be searched at all. */
  error: string | null;
}

/** One change at or below the root of a watch. */
export interface Change {
  /** The earlier path of a `renamed` entry. A renamed directory stands for everything below it. */
  from?: string;
  /** `modified` is a change of the content or of the metadata. `gap` means that changes were lost: look again at everything at and below `path`. An entry may be `created` again, or `removed` without having been reported before: a change says what is true after it. */
  kind: "created" | "modified" | "removed" | "renamed" | "gap";
  /** The path below the root of the watch, as it was requested. */
  path: string;
  /** Whether it is or was a directory itself; false for a link to one. */
  isDirectory: boolean;
}

/** One file of configuration. */
export interface ConfigLayer {
  /** The kind and the path of the file, for people. */
  source: string;
  /** The folder from which relative paths in it count. */
  baseDir: string;
  /** A TOML document with the named keys. */
  toml: string;
}

/** Configuration layers, in ascending order of precedence. */
export interface ConfigLayers {
  /** The layers that set one of the keys, with those keys only. */
  layers: ConfigLayer[];
  /** The index in `layers` at which a client inserts layers of its own service. */
  cloudInsertionIndex: number;
}

/** A line near a match. */
export interface ContextLine {
  /** The number of the line. */
  line: number;
  /** The line without its end; absent if it is not UTF-8. */
  text?: string;
  /** The bytes of the line without its end, if they are not UTF-8. */
  textBase64?: string;
  /** True if the line is too long and has its beginning only. Absent otherwise. */
  cut?: boolean;
}

/** The answer of a client. Everything but `allow` denies. */
export interface Decision {
  /** `ask` means that a person would have to decide, and denies. */
  type: "allow" | "deny" | "ask";
  /** Why, in at most 1,024 bytes; for the command's error and for the record. Null is `not_allowed`. */
  reason?: string | null;
  /** For how long `allow` and `deny` hold: `once`, for this question; `session`, for the same protocol, host and port in the session, also after a reconnect. Null is `session` on a connection with extensions, and `once` on others. `ask` is never kept. */
  scope?: "once" | "session" | null;
}

/** Indications that the sandbox stopped a command that failed. A line of output counts only if it names an error of the system together with something that the policy of the process denies. */
export interface Denial {
  /** Whether there are any indications. */
  likely: boolean;
  /** The indications, at most five. */
  evidence: DenialEvidence[];
}

/** One indication that the sandbox stopped the command. */
export interface DenialEvidence {
  /** The kind of indication: death by SIGSYS, a path, or the network. */
  kind: "signal" | "file" | "network";
  /** The line of output with the error, cut at 200 characters. */
  text: string;
  /** The path in the line that the policy denies. */
  path?: string;
  /** Of a path. `protectedName`: it is at, in or around a name that is read-only in every writable folder (`.git`, `.agents`, `.codex`, `.aws`), unless an entry makes it writable. `readOnly`: no entry makes it writable. `noAccess`: the entries deny it, or do not allow to read it. */
  reason?: "protectedName" | "readOnly" | "noAccess";
  /** The path of the protected name, if that is the reason. */
  protectedPath?: string;
}

/** One name in a directory. For a link, the flags describe its target. */
export interface DirectoryEntry {
  /** The name without its folder; bytes that are not UTF-8 are replaced by U+FFFD. */
  fileName: string;
  /** Whether it is a directory. */
  isDirectory: boolean;
  /** Whether it is a regular file. */
  isFile: boolean;
}

/** No limits at all. */
export interface DisabledPermissions {
  /** The tag of this kind of permissions. */
  type: "disabled";
}

/** Where a skill was found. */
export interface DiscoveryRoot {
  /** `codex-home-skills`, `user-agent-skills` or `system-skills`. */
  id: string;
  /** The folder that was searched. */
  path: string;
}

/** The processes that a command had left running in its sandbox when it exited, and that were ended with it: a sandbox with a pid namespace ends with its command. */
export interface EndedWithSandbox {
  /** How many; above 100 they are not counted further. */
  count: number;
  /** Their different names, as the kernel has them (15 bytes each), at most five. */
  names: string[];
}

/** Why one entry of several failed. */
export interface EntryError {
  /** The number that a request for this entry alone would be answered with. */
  code: number;
  /** A sentence for people; for a failed system call the operating system's reason with its number. */
  message: string;
}

/**
 * How the child's environment is made from the daemon's own, in the order of the members here.
 *
 * `env` is then applied to the result. A pattern has `*` for any text and `?` for any one character, and ignores case (`docs/protocol.md`, "Environment policy").
 */
export interface EnvPolicy {
  /** The daemon's variables to start from; `core` are those for home, language, path, shell, temporary folders and the user's name. */
  inherit: "core" | "all" | "none";
  /** Whether names with KEY, SECRET or TOKEN in them stay; with false they are dropped. */
  ignoreDefaultExcludes: boolean;
  /** Patterns of names to drop. */
  exclude: string[];
  /** Variables to add, by name. */
  set: Record<string, string>;
  /** Patterns of the only names to keep, also of those in `set`; an empty list keeps all. */
  includeOnly: string[];
}

/**
 * Describe the executor's host: shell, folders, system and capabilities.
 *
 * The description does not change while the daemon runs.
 */
export interface EnvironmentInfo {
  /** The login shell of the account, for clients that wrap commands in one. */
  shell: Shell;
  /** The version of this daemon. */
  executorVersion: string;
  /** An opaque name of this run of the daemon; equal names mean the same executor. */
  providerId: string;
  /** The folder in which the daemon was started. */
  cwd: string;
  /** The home folder: `HOME` of the daemon, else that of the account. */
  userHomeDir: string;
  /** The operating system of the executor. */
  platformOs: "linux";
  /** Folders that a client should prepend to `PATH`; empty on this executor. */
  prependPathDirs: string[];
  /** All folders for temporary files, including `tempDir`. */
  temporaryDirectories: string[];
  /** The folder for temporary files: an absolute `TMPDIR` of the daemon, else `/tmp`. */
  tempDir: string;
  /** The capabilities of this executor beyond the basic methods. */
  capabilities: Capabilities;
  /** Whether commands and changes of files without a sandbox that limits files are refused, by the setting `require_sandbox`. */
  requireSandbox?: boolean;
}

/** What programs match on. Connections that speak standard JSON-RPC 2.0 get it; with a `reason`, also those with extensions. */
export interface ErrorData {
  /** The name of the error: finer than the number, and it never changes its meaning. */
  code: string;
  /** The parameter at fault, as it is called on the wire; members of members stand behind dots. */
  field?: string;
  /** A sentence for people: what kept a program from being started. */
  reason?: string;
  /** The folder, the program or the interpreter that is missing, or may not be used. */
  path?: string;
}

/** What a process with `limits` and its descendants used together. A member that the kernel does not count is missing. */
export interface ExitUsage {
  /** The most memory at a time. */
  memoryPeakBytes?: number;
  /** The most processes and threads at a time. */
  pidsPeak?: number;
  /** Processor time in milliseconds. */
  cpuMs?: number;
  /** The limits that had an effect: `memory` exhausted, a `fork` that `pids` refused, a wait for `cpu`, or the end at `wall`. */
  limitsHit: Array<"memory" | "pids" | "cpu" | "wall">;
}

/** No file and no folder; a dangling link counts as nothing. */
export interface ExpectedAbsent {
  /** Always true; there is no other value. */
  absent: true;
}

/** A regular file with this content; links are followed. */
export interface ExpectedContent {
  /** The SHA-256 of the content in 64 hexadecimal digits, as `fs/digest` returns it. */
  sha256: string;
}

/** The families of extension members that the client understands, each by its version. */
export interface Extensions {
  /** 1 requests the extension members of this daemon; null or any other number requests none. */
  execserver?: number | null;
}

/** An external sandbox around the executor limits files; the executor limits the network only. */
export interface ExternalPermissions {
  /** The tag of this kind of permissions. */
  type: "external";
  /** Whether the network may be used. */
  network: "restricted" | "enabled";
}

/**
 * The access to one path and everything below it.
 *
 * The entry for the deepest path applies; of several for one path, `deny` comes first, then `write`.
 */
export interface FileSystemEntry {
  /** The path to which the entry applies. */
  path: LiteralEntryPath | GlobEntryPath | SpecialEntryPath;
  /** The granted access; `write` includes reading, `none` is an alias of `deny`. */
  access: "read" | "write" | "deny" | "none";
  /** `skip` allows a missing path to be created; null prevents it, if the entry forbids writing. */
  missing_path_behavior?: "skip" | null;
}

/** A process that is no longer kept. */
export interface ForgottenEntry {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The session of the process. */
  sessionId: string;
  /** `sessionExpired` if no client resumed its session in time, `sessionEnded` if a client ended the session (`session/end`), `processExpired` if the process had been closed for `--process-ttl`. */
  reason: "sessionExpired" | "sessionEnded" | "processExpired";
  /** When the process was started, in milliseconds since 1970, by the executor's clock at that time. */
  startedAtMs: number;
  /** When its session ended, or with `processExpired` when it was closed, by the same clock. */
  atMs: number;
  /** How long ago that is, in milliseconds. */
  agoMs: number;
  /** How long its session was kept without a connection, in milliseconds; null with `processExpired`. */
  sessionTtlMs: number | null;
  /** The exit status, or 128 + N for death by signal N; null if the process was killed with its session. */
  exitCode: number | null;
  /** Why the process ended, as in `process/exited`; null if it was killed with its session. */
  cause: "normal" | "signal" | "terminated" | "timeout" | "idleTimeout" | "sessionExpired" | "serviceStop" | "outOfMemory" | "limit" | "unknown" | null;
}

/** One path, as `fs/getMetadata` describes it, or the `error` alone. */
export interface FoundFile {
  /** Whether it is a directory. */
  isDirectory?: boolean;
  /** Whether it is a regular file. */
  isFile?: boolean;
  /** Whether the path itself is a symbolic link. */
  isSymlink?: boolean;
  /** The size in bytes. */
  size?: number;
  /** The permission bits as a number, including the set-id and sticky bits. */
  permissions?: number;
  /** The time of the last change of the content, in nanoseconds since 1970. */
  modifiedAtNs?: number;
  /** The time of the last access, in nanoseconds since 1970. */
  accessedAtNs?: number;
  /** The content of a regular file, up to the size that it had when it was opened. Absent if it does not fit, or if the file shrank meanwhile. */
  dataBase64?: string;
  /** The SHA-256 of as many bytes, read a second time: another one than that of `dataBase64` if the file was changed meanwhile. For a file that reports no size, that of `dataBase64`. */
  sha256?: string;
  /** Why the path cannot be described or read. */
  error?: EntryError;
}

/** A line with a match, or several lines if one match spans them. */
export interface FoundLine {
  /** The number of the (first) line, counted from 1. */
  line: number;
  /** The line without its end; absent if it is not UTF-8. */
  text?: string;
  /** The bytes of the line without its end, if they are not UTF-8. */
  textBase64?: string;
  /** Where the matches begin and end, in bytes from the beginning of the line. */
  ranges: number[][];
  /** True if the line is too long and has its beginning only, and only the first of its ranges. Absent otherwise. */
  cut?: boolean;
  /** The lines before, if `contextLines` asks for them, without those that an earlier match has. */
  before?: ContextLine[];
  /** The lines after, up to the next match. */
  after?: ContextLine[];
}

/** All files and folders that match a pattern when the sandbox is created. */
export interface GlobEntryPath {
  /** The tag of this kind of entry. */
  type: "glob_pattern";
  /** The pattern, with `*`, `?`, `**`, `[…]` and `{a,b}`; a relative one is resolved against the context's `cwd`. */
  pattern: string;
}

/** A request header; `valueEnvVar` appends a variable of the executor's environment. */
export interface HttpHeader {
  /** The name of the header, in any case. */
  name: string;
  /** The value, or the part before the variable's value. */
  value: string;
  /** The variable of the executor's environment whose value is appended; null for none. A variable that is not set, is empty or is not for clients is refused. */
  valueEnvVar?: string | null;
}

/** A response header. Repeated headers are repeated here, in order. */
export interface HttpResponseHeader {
  /** The name, in lower case. */
  name: string;
  /** The value as received. */
  value: string;
}

/** An installed plugin in its newest version. */
export interface InstalledPlugin {
  /** Its name and its marketplace: `NAME@MARKETPLACE`. */
  id: string;
  /** Its name for people. */
  displayName: string;
  /** The marketplace's own id. */
  remotePluginId: string | null;
  /** The version, or `local`. */
  version: string;
  /** The folder of this version. */
  root: string;
  /** Its files, with their texts. */
  files: PluginFiles;
  /** Its skills, below its folder. */
  skills: InstalledSkill[];
}

/** A skill, by the front matter of its `SKILL.md` and its `agents/openai.yaml`. */
export interface InstalledSkill {
  /** Its name, after that of its plugin and a colon if it has one. */
  name: string;
  /** What it is for. */
  description: string;
  /** The same in a few words. */
  shortDescription: string | null;
  /** The path of its `SKILL.md`. */
  path: string;
  /** Where it was found; absent for the skill of a plugin. */
  discoveryRoot?: DiscoveryRoot;
  /** What it needs. */
  dependencies: SkillDependencies | null;
  /** When it may be used. */
  policy: SkillPolicy | null;
}

/** The limit that ended a process. */
export interface LimitHit {
  /** `memory` for `memoryBytes`, `wall` for `wallMs`. */
  which: "memory" | "wall";
  /** The limit: bytes, or milliseconds. */
  value: number;
}

/** One path and everything below it. */
export interface LiteralEntryPath {
  /** The tag of this kind of entry. */
  type: "path";
  /** The path of the entry. */
  path: string;
}

/** The loopback ports that stay reachable in a sandbox. Without effect outside of one. */
export interface ManagedNetwork {
  /** The TCP ports of the loopback interface that may be connected to. */
  loopbackPorts?: number[];
  /** Whether the process may listen on loopback. */
  allowLocalBinding?: boolean;
}

/** Limits that the executor enforces. */
export interface ManagedPermissions {
  /** The tag of this kind of permissions. */
  type: "managed";
  /** The limits on files. */
  file_system: UnrestrictedFileSystem | RestrictedFileSystem;
  /** Whether the network may be used. */
  network: "restricted" | "enabled";
}

/** A network proxy for one process. */
export interface NetworkProxy {
  /** What it permits. */
  proxy: ProxySettings;
  /** Words of the client for its own records; without effect. */
  auditMetadata?: Record<string, unknown>;
  /** The client's name for the environment; without effect. */
  environmentId?: string | null;
  /** The client's name for the execution; without effect. */
  executionId?: string | null;
  /** How long the proxy waits for the client's answer about a host without a verdict, in milliseconds, not 0; without an answer the host is denied. Null asks for nothing and denies. */
  policyDecisionTimeoutMs?: number | null;
}

/** A host that a command wants to reach. */
export interface NetworkRequest {
  /** How the command asked for it. */
  protocol: "http" | "https_connect" | "socks5_tcp" | "socks5_udp";
  /** Its name in lower case without a final dot, or its IP address. */
  host: string;
  /** Its TCP or UDP port. */
  port: number;
}

/** One numbered piece of output. */
export interface OutputChunk {
  /** The number of the chunk: one counter from 1 for all events of the process, without gaps. */
  seq: number;
  /** The stream of the output; `pty` for everything on a terminal. */
  stream: "stdout" | "stderr" | "pty";
  /** The bytes as written, at most 1 MiB, cut anywhere, also within a character. An empty chunk stands for output that is no longer retained. */
  chunk: string;
  /** When the server took the bytes from the process, in milliseconds since 1970. Not in an empty chunk. */
  at?: number;
}

/** The files of a plugin. */
export interface PluginFiles {
  /** `plugin.json` in `.codex-plugin`, `.claude-plugin` or `.cursor-plugin`. */
  manifest: TextFile;
  /** MCP servers: the file that `mcpServers` of the manifest names, else `.mcp.json`. For `capabilities/discoverV2` also servers in the manifest itself, with the manifest's path. */
  mcpConfig: TextFile | null;
  /** Connectors: the file that `apps` of the manifest names, else `.app.json`. */
  appsConfig: TextFile | null;
}

/** The folders for relative entries. */
export interface PolicyContext {
  /** The folder for relative entries; null for that of the sandbox context. */
  cwd?: string | null;
  /** The folders that the role `project_roots` stands for; null for those of the sandbox context. */
  workspaceRoots?: string[] | null;
}

/** One listening socket. */
export interface PortEntry {
  /** The TCP port that it listens on. */
  port: number;
  /** The address that it is bound to, such as `127.0.0.1`, `0.0.0.0`, `::` or `::1`. */
  address: string;
  /** The family of the address. A socket on `::` may take IPv4 connections, too. */
  family: "ipv4" | "ipv6";
  /** The `processId` of the `process/start` whose descendant listens; null if that process is no longer kept. */
  processId: string | null;
  /** The session of that process. */
  sessionId: string;
  /** The process id, on the executor, of the process that listens; the lowest one if several share the socket. */
  pid: number;
  /** The name of that process as the kernel has it, at most 15 bytes. */
  name: string;
  /** Whether the socket is in another network namespace than the daemon, such as a sandbox with its own: then a connection from outside has to be made with `port/open`. */
  sandboxed: boolean;
}

/** The state of one process. */
export interface ProcessEntry {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The session of the process. */
  sessionId: string;
  /** The process id of the leader on the executor, also after its end. */
  pid: number;
  /** `running` while the leader runs, `exited` while its output is still open, then `closed`. */
  state: "running" | "exited" | "closed";
  /** Whether the process has a terminal. */
  tty: boolean;
  /** The size of the terminal, while it is open. */
  size?: WrittenSize;
  /** When the process was started, in milliseconds since 1970, by the executor's clock at that time. */
  startedAtMs: number;
  /** How long ago that was, in milliseconds, by a monotonic clock. */
  ageMs: number;
  /** The exit status, or 128 + N for death by signal N; null while the leader runs. */
  exitCode: number | null;
  /** Why the process ended, as in `process/exited`; null while it runs. */
  cause: "normal" | "signal" | "terminated" | "timeout" | "idleTimeout" | "sessionExpired" | "serviceStop" | "outOfMemory" | "limit" | "unknown" | null;
  /** The number of the newest event; 0 before the first one. */
  lastSeq: number;
  /** How many bytes of its output are retained. */
  retainedBytes: number;
  /** Processor time of the leader and its living descendants, including their children that ended and were waited for; null if none lives. */
  cpuSeconds: number | null;
  /** Resident memory of the leader and its living descendants; null if none lives. */
  rssBytes: number | null;
  /** The number of these processes; null if there are none. */
  processCount: number | null;
  /** Its limits, with those that the executor added, by the names in `limits` of `process/start`; present only if it has any. */
  limits?: Record<string, number>;
  /** What the process and its descendants used so far, or until it ended; present only with `limits`. */
  usage?: ExitUsage;
  /** The command line, cut at 4096 characters; null without `argv` in the request. */
  argv: string[] | null;
  /** The working folder as a native path; null without `argv` in the request. */
  cwd: string | null;
}

/** The origin of a start, for logs only. */
export interface ProcessMetadata {
  /** The UUID of the agent's thread; null if there is none. */
  threadId?: string | null;
  /** The agent's name for the tool call; null if there is none. */
  toolCallId?: string | null;
}

/** What the proxy of a process permits. */
export interface ProxySettings {
  /** Whether there is a proxy; false is refused. */
  enabled?: boolean;
  /** Whether it also speaks SOCKS5, on a port of its own. */
  enableSocks5?: boolean;
  /** Whether SOCKS5 may associate UDP. This executor refuses every association. */
  enableSocks5Udp?: boolean;
  /** Whether HTTP requests and CONNECT may go through the HTTP proxy that the daemon's environment names. Hosts are judged before, as without it. `NO_PROXY` is not considered. */
  allowUpstreamProxy?: boolean;
  /** Whether every Unix socket may be reached. Without effect: this executor's proxy reaches none. */
  dangerouslyAllowAllUnixSockets?: boolean;
  /** `limited` permits the methods GET, HEAD and OPTIONS only, and so no CONNECT. */
  mode?: "limited" | "full";
  /** Verdicts by host: `example.com`; `*.example.com`, its subdomains; `**.example.com`, both; `*`, all; an IP address; each also with a port, as in `example.com:443`. `deny` wins, and `none` is no verdict. A host without a verdict is denied, or asked about. */
  domains?: Record<string, "allow" | "deny" | "none"> | null;
  /** Hosts, as in `domains`, for which `allow` does not count: they are denied, or asked about. */
  reviewDomains?: string[];
  /** Verdicts by path of Unix sockets. Without effect: this executor's proxy reaches none. */
  unixSockets?: Record<string, "allow" | "deny"> | null;
  /** Whether names of public hosts may have private, loopback and link-local addresses. */
  allowLocalBinding?: boolean;
}

/** A directory or a small file to create. */
export interface PutEntry {
  /** The full path; links are followed. The folder above it must exist, or be an earlier entry. */
  path: string;
  /** The permission bits, as a number, of a new file, or of a new directory less the daemon's umask. */
  permissions: number;
  /** The whole content of a file, which may be empty; null for a directory. An existing directory is left as it is. */
  dataBase64?: string | null;
  /** The SHA-256 of the content in 64 hexadecimal digits. The daemon reads the new file again before the file gets its name, and discards it if its content differs; null skips that. */
  sha256?: string | null;
  /** The time of the last change of a file, in nanoseconds since 1970; null for now. */
  modifiedAtNs?: number | null;
  /** The time of the last access of a file, in nanoseconds since 1970; null for now. */
  accessedAtNs?: number | null;
}

/** What became of one entry. Without `error`, the file or directory is there. */
export interface PutOutcome {
  /** Whether an existing file could not be replaced, and was written in place; only for a file. */
  inPlace?: boolean;
  /** Why there is no such file or directory; a file that existed before is unchanged. */
  error?: EntryError;
}

/** Remove a file or a link, never its target. The path must exist, and a directory is refused. */
export interface RemoveEdit {
  /** The tag of this kind of edit. */
  op: "remove";
  /** What to remove. */
  path: string;
  /** The expected current state; null for anything but a directory. */
  expected?: ExpectedContent | null;
}

/** What a process and all its descendants may use together, enforced by control groups. A limit that this executor cannot enforce is refused, and so is an unknown member. */
export interface ResourceLimits {
  /** Memory in bytes, with the page cache of their files; they get no swap beside it. When it is exhausted, all of them are killed, and the `cause` is `limit`. At least 1 MiB; null for no limit. */
  memoryBytes?: number | null;
  /** Processes and threads at a time; those of a sandbox itself are not counted. Above it, `fork` fails with EAGAIN. Null for no limit. */
  pids?: number | null;
  /** Processor time, in percent of one processor: 150 is one and a half. Above it they wait. Null for no limit. */
  cpuPercent?: number | null;
  /** The share of block devices while other processes use them, too; 100 is that of processes without this limit. Refused where no device shares its time by weight. Null for no weight. */
  ioWeight?: number | null;
  /** How long the process may run, in milliseconds, as `timeoutMs`; the `cause` is then `limit`. With both, the shorter one ends it. Null for no limit. */
  wallMs?: number | null;
}

/** Only what the entries grant. */
export interface RestrictedFileSystem {
  /** The tag of this kind of limits. */
  type: "restricted";
  /** Grants and denials by path. */
  entries: FileSystemEntry[];
  /** How many levels of folders are searched for patterns, at least 1; null for all. */
  glob_scan_max_depth?: number | null;
}

/** What a request may access. Limits are enforced, or refused with -32600; without limits the request is executed without a sandbox. */
export interface SandboxContext {
  /** The permissions. Their members are in snake_case, as the agent has them. */
  permissions: ManagedPermissions | DisabledPermissions | ExternalPermissions;
  /** The kind of sandbox on Windows; required, without effect on Linux. */
  windowsSandboxLevel: "disabled" | "restricted-token" | "elevated" | "mxc";
  /** The folder to which entries may refer. If it is null, such entries grant nothing, and `fs/*` refuses them if `workspaceRoots` is empty, too. */
  cwd?: string | null;
  /** The folders for relative entries; null for the folders of this context. */
  policyContext?: PolicyContext | null;
  /** The folders that the role `project_roots` stands for. */
  workspaceRoots?: string[];
  /** Without effect: no entry refers to it. Null if it is not known. */
  userHomeDir?: string | null;
  /** In `fs/*`, the folders that the role `tmpdir` stands for; null for the executor's `TMPDIR`. Without effect in `process/start`, which uses `TMPDIR` of the command. */
  temporaryDirectories?: string[] | null;
  /** For Windows only; without effect on Linux. */
  windowsSandboxPrivateDesktop?: boolean;
  /** For Windows only; without effect on Linux. Null if it is not set. */
  windowsSandboxProxySettingsMode?: string | null;
  /** A request for an older kind of sandbox on Linux, which cannot enforce limits on files: refused with such limits, without effect otherwise. */
  useLegacyLandlock?: boolean;
}

/** A file with matches. A page begins with the file that the page before ended with, if it has more. */
export interface SearchedFile {
  /** The file, below the `path` of the request. */
  path: string;
  /** Its lines with matches, in their order; empty for the output `files`. */
  matches: FoundLine[];
  /** True if a NUL byte has ended the search of the file; the matches before it may be of no use. Absent otherwise. */
  binary?: boolean;
}

/** The login shell of the account that the daemon runs as. */
export interface Shell {
  /** The last part of the path, such as `bash`. */
  name: string;
  /** The native path of the program, such as `/bin/bash`; not a URI. */
  path: string;
}

/**
 * A request for the state of a login shell that an earlier start has left, in the place of the profile.
 *
 * It has an effect on `PATH -lc SCRIPT` without a terminal, for a bash or a zsh.
 */
export interface ShellSnapshot {
  /** The name under which a snapshot is shared: 1 to 256 bytes of UTF-8. */
  scopeId: string;
  /** The shell of the snapshot. */
  shell: SnapshotShell;
}

/** A size of a terminal, and since when it holds. */
export interface SizeChange {
  /** The number of the newest event at that time; 0 before the first one. */
  seq: number;
  /** The time in milliseconds since 1970. */
  at: number;
  /** The number of lines. */
  rows: number;
  /** The number of characters in a line. */
  cols: number;
}

/** What a skill needs. */
export interface SkillDependencies {
  /** The tools; at least one. */
  tools: SkillTool[];
}

/** The files of a skill. */
export interface SkillFiles {
  /** Its `SKILL.md`: what to do. */
  instructions: TextFile;
  /** `agents/openai.yaml` beside it. */
  metadata: TextFile | null;
}

/** When a skill may be used. */
export interface SkillPolicy {
  /** Whether the agent may use it unasked; null if that is not said. */
  allowImplicitInvocation: boolean | null;
  /** The products for which it is: `chatgpt`, `codex`, `atlas`; all if the list is empty. */
  products: string[];
}

/** A tool that a skill needs. */
export interface SkillTool {
  /** Its kind, such as `mcp`. */
  type: string;
  /** Its name there. */
  value: string;
  /** What it is for. */
  description: string | null;
  /** How to reach it. */
  transport: string | null;
  /** The command that starts it. */
  command: string | null;
  /** Its address, if any. */
  url: string | null;
  /** The port for a login in the browser. */
  oauthCallbackPort: number | null;
}

/** The shell whose login state a snapshot would contain. */
export interface SnapshotShell {
  /** The kind of shell, such as `bash`. */
  name: string;
  /** The native path of the program. */
  path: string;
}

/** A path, given by its role. */
export interface SpecialEntryPath {
  /** The tag of this kind of entry. */
  type: "special";
  /** The role that names the path. */
  value: SpecialPath;
}

/** A path that is resolved on the executor, such as the workspace roots. */
export interface SpecialPath {
  /** The role of the path: the root folder, the minimum that programs need, the `cwd` of the context, its `workspaceRoots`, `TMPDIR`, `/tmp`, or one that this version does not know, which matches nothing. */
  kind: "root" | "minimal" | "current_working_directory" | "project_roots" | "tmpdir" | "slash_tmp" | "unknown";
  /** A relative path below it, without a way out of it; null for all of it. */
  subpath?: string | null;
  /** The text of a role that is `unknown`; null otherwise. */
  path?: string | null;
}

/** How large a terminal is, in characters. */
export interface TerminalSize {
  /** The number of lines: 1 to 65535. */
  rows: number;
  /** The number of characters in a line: 1 to 65535. */
  cols: number;
}

/** A file in UTF-8. */
export interface TextFile {
  /** Where it is. */
  path: string;
  /** Its whole text. */
  contents: string;
}

/** No limit on the file system. */
export interface UnrestrictedFileSystem {
  /** The tag of this kind of limits. */
  type: "unrestricted";
}

/** One file or directory below the root of a walk. */
export interface WalkEntry {
  /** The path, with links that were followed. */
  path: string;
  /** The kind of the entry; a followed link to a directory counts as `directory`. */
  kind: "file" | "directory";
}

/** A directory that could not be read. */
export interface WalkFailure {
  /** The path of the directory. */
  path: string;
  /** The operating system's reason, with its number. */
  message: string;
}

/** The limits of a walk. */
export interface WalkOptions {
  /** How many levels below the root's children are listed: 0 gives the children only. At most 64. */
  maxDepth: number;
  /** How many directories may be opened, including the root: 1 to 10000. */
  maxDirectories: number;
  /** The walk ends after so many entries: 1 to 50000. */
  maxEntries: number;
  /** Whether links to directories are entered; each real directory is entered only once. */
  followDirectorySymlinks: boolean;
  /** Whether directories whose names begin with a dot are listed without being entered. */
  pruneHiddenDirectories?: boolean;
}

/** Create a file, or replace its content. */
export interface WriteEdit {
  /** The tag of this kind of edit. */
  op: "write";
  /** The file; links are followed, and kept. */
  path: string;
  /** The new content of the file; may be empty. */
  dataBase64: string;
  /** The expected current state; null for a regular file or nothing. */
  expected?: ExpectedContent | ExpectedAbsent | null;
  /** Whether missing folders above the file are created. */
  createParents?: boolean;
  /** A file whose permission bits a new file gets, such as the old path of a moved file; null for 0666 without the bits of the daemon's umask. An existing file keeps its own. */
  modeFrom?: string | null;
}

/** How large a terminal is, in characters. */
export interface WrittenSize {
  /** The number of lines. */
  rows: number;
  /** The number of characters in a line. */
  cols: number;
}

/** Why a request has no result. */
export interface ErrorObject {
  /** The number of the error. It is coarse: one number stands for many things. */
  code: -32700 | -32600 | -32601 | -32602 | -32603 | -32004 | -32010 | -32011;
  /** A sentence for people. */
  message: string;
  /** The name of the error, and the parameter at fault. */
  data?: ErrorData;
}

/**
 * Find the plugins that are installed on this host, and the skills of its user and its system.
 *
 * These are below `plugins/cache` and `skills` of `CODEX_HOME`, `.agents/skills` of the home folder and `/etc/codex/skills`. The search has the limits of `capabilityRoots/discoverV1` and ends after 10 seconds; the YAML of a skill has at most 16 KiB, and a reply 2048 plugins and skills and 4 MiB.
 */
export interface CapabilitiesDiscoverV2Params {
  /** The folder in which the agent works; it need not exist. Without effect: clients find the skills of a project by themselves. */
  cwd: string;
  /** Limits for reading; its `cwd` is required. */
  sandbox?: SandboxContext | null;
}

/** What is installed. */
export interface CapabilitiesDiscoverV2Result {
  /** The plugins, by id. */
  plugins: InstalledPlugin[];
  /** The skills outside plugins: those of `CODEX_HOME`, of the user, of the system. */
  skills: InstalledSkill[];
  /** Messages for people about what could not be read. */
  warnings: string[];
}

/**
 * Find the files of a plugin and of skills below each of some folders.
 *
 * A folder is searched for 10 seconds, six levels deep, through 2000 folders and 20,000 entries. A file has at most 1 MiB, the files of a folder 16 MiB, those of a reply 32 MiB. What is beyond a limit, cannot be read or is not UTF-8 becomes a warning.
 */
export interface CapabilityRootsDiscoverV1Params {
  /** The folders to search: at most 128. */
  roots: CapabilityRoot[];
}

/** The files by folder. */
export interface CapabilityRootsDiscoverV1Result {
  /** One object for each folder, in the order of the request. */
  roots: CapabilityRootFiles[];
}

/** Absent, null or `{}`; anything else is refused. */
export type EnvironmentInfoParams = Record<string, never>;

/**
 * Describe the executor's host: shell, folders, system and capabilities.
 *
 * The description does not change while the daemon runs.
 */
export interface EnvironmentInfoResult {
  /** The login shell of the account, for clients that wrap commands in one. */
  shell: Shell;
  /** The version of this daemon. */
  executorVersion: string;
  /** An opaque name of this run of the daemon; equal names mean the same executor. */
  providerId: string;
  /** The folder in which the daemon was started. */
  cwd: string;
  /** The home folder: `HOME` of the daemon, else that of the account. */
  userHomeDir: string;
  /** The operating system of the executor. */
  platformOs: "linux";
  /** Folders that a client should prepend to `PATH`; empty on this executor. */
  prependPathDirs: string[];
  /** All folders for temporary files, including `tempDir`. */
  temporaryDirectories: string[];
  /** The folder for temporary files: an absolute `TMPDIR` of the daemon, else `/tmp`. */
  tempDir: string;
  /** The capabilities of this executor beyond the basic methods. */
  capabilities: Capabilities;
  /** Whether commands and changes of files without a sandbox that limits files are refused, by the setting `require_sandbox`. */
  requireSandbox?: boolean;
}

/** Absent, null or `{}`; anything else is refused. */
export type EnvironmentStatusParams = Record<string, never>;

/**
 * Report whether the executor can serve.
 *
 * There is only one status: the answer itself shows that the executor is ready.
 */
export interface EnvironmentStatusResult {
  /** The only status. */
  status: "ready";
}

/**
 * Read keys of the agent's configuration on this host.
 *
 * Only the named keys are returned. A layer of a project counts if the system, the user or the administrator trusts its folder. A file that is no TOML is error -32603, which names it.
 */
export type EnvironmentConfigReadParams = unknown;

/** The values of the keys. */
export interface EnvironmentConfigReadResult {
  /** The home folder, as in `environment/info`. */
  userHomeDir: string;
  /** The folder of the agent's own files: `CODEX_HOME`, else `.codex` in the home folder. */
  codexHomeDir: string;
  /** The host name of the executor. */
  hostname: string;
  /** The layers of the configuration. */
  config: ConfigLayers;
  /** The layers of the requirements that the configuration must meet. */
  requirements: ConfigLayers;
}

/**
 * Change several files as one: all edits are carried out, or none.
 *
 * The expectations of all edits are checked first. Then all new files are written beside their destinations, and a journal of the edits is written to the disk. From then on the edits are carried out, at the next start if the daemon is killed. A changed file is replaced: its other names (hard links) keep the old content, and open handles the old file. It keeps its permission bits and owner.
 */
export interface FsApplyEditsParams {
  /** The edits: 1 to 10000, at most one per path. A folder created by one exists for the following ones. */
  edits: Array<WriteEdit | RemoveEdit>;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** All edits were carried out. */
export interface FsApplyEditsResult {
  /** The result of each edit, in their order. */
  edits: AppliedEdit[];
}

/** Resolve all links of a path, which must exist and may be of any kind. */
export interface FsCanonicalizeParams {
  /** The path of the request. */
  path: string;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The path without links. */
export interface FsCanonicalizeResult {
  /** The path with every link resolved. */
  path: string;
}

/** Close a handle. It is no error if the handle is not open. */
export interface FsCloseParams {
  /** The `handleId` of the `fs/open`. */
  handleId: string;
}

/** Success, without further information. */
export type FsCloseResult = Record<string, never>;

/**
 * Copy a file, a link or a tree, completely or not at all.
 *
 * A file is copied with its permission bits, and replaces an existing one; the folder above it must exist. A link is copied as a link. A directory is copied to a free path; missing parents are created, and special files in it are omitted. A growing file is copied up to its size at the time when it was opened.
 */
export interface FsCopyParams {
  /** What to copy: a regular file, a link or a directory. */
  sourcePath: string;
  /** The full path of the copy, not only its folder. */
  destinationPath: string;
  /** Whether a directory may be copied; otherwise a directory is refused. */
  recursive: boolean;
  /** Whether an existing file keeps its permission bits, and new files and directories get those of their source without the set-id and sticky bits, as with cp(1). */
  keepMode?: boolean;
  /** Whether copies get the times of last access and last change of their source. */
  preserveTimes?: boolean;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The file or copy is at its destination. */
export interface FsCopyResult {
  /** Whether the existing file could not be replaced, and was written in place. */
  inPlace?: boolean;
}

/** Create a directory, by default with its parents. */
export interface FsCreateDirectoryParams {
  /** The path of the request. */
  path: string;
  /** Whether missing parents are created, too, and an existing directory is no error. */
  recursive?: boolean;
  /** The permission bits of a new directory, as a number, without the bits of the daemon's umask. Null for 0777, which missing parents always get. */
  permissions?: number | null;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** Success, without further information. */
export type FsCreateDirectoryResult = Record<string, never>;

/** Read a regular file of any size and return its SHA-256; links are followed. */
export interface FsDigestParams {
  /** The path of the request. */
  path: string;
  /** How many bytes to read from the beginning, at most up to the end; null for all. For growing files. */
  size?: number | null;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The digest of a file, at the time of reading. */
export interface FsDigestResult {
  /** The SHA-256 in 64 hexadecimal digits. */
  sha256: string;
  /** How many bytes were read. */
  size: number;
}

/** End a search, whose requests are answered with an error. It is no error if it has ended. */
export interface FsEndSearchParams {
  /** The `searchId` of the search. */
  searchId: string;
}

/** Success, without further information. */
export type FsEndSearchResult = Record<string, never>;

/** Describe several paths, and read those of them that are small files; links are followed. */
export interface FsGetFilesParams {
  /** The paths: 1 to 1000. */
  paths: string[];
  /** How many bytes of content the result may have in total: at most 4194304. A file that is larger than the rest is described only. */
  maxBytes?: number;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The paths, and the contents that fit. */
export interface FsGetFilesResult {
  /** Each path, in their order. */
  entries: FoundFile[];
}

/**
 * Get the kind, size and times of a path.
 *
 * Links are followed, so a dangling link is not found.
 */
export interface FsGetMetadataParams {
  /** The path of the request. */
  path: string;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The metadata of a path. For a link, all members but `isSymlink` describe its target. */
export interface FsGetMetadataResult {
  /** Whether it is a directory. */
  isDirectory: boolean;
  /** Whether it is a regular file. A fifo, a socket and a device are neither. */
  isFile: boolean;
  /** Whether the path itself is a symbolic link. */
  isSymlink: boolean;
  /** The size in bytes. */
  size: number;
  /** The time of creation, in whole milliseconds since 1970; 0 if it is not known. */
  createdAtMs: number;
  /** The time of the last change of the content, in whole milliseconds since 1970. */
  modifiedAtMs: number;
  /** The permission bits as a number, including the set-id and sticky bits. */
  permissions?: number;
  /** The same time as `modifiedAtMs` in nanoseconds, negative before 1970. */
  modifiedAtNs?: number;
  /** The time of the last access, in nanoseconds since 1970. */
  accessedAtNs?: number;
}

/**
 * Find files by name, page by page. Links are followed for `path` only, and are not found.
 *
 * A page can be repeated until the next one is requested.
 */
export interface FsGlobParams {
  /** The path of the request. */
  path: string;
  /** The files: those that one of the globs matches. */
  globs: string[];
  /** How many files the page has: 1 to 100000. */
  maxFiles?: number;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
  /** Names of folders that are not entered, at any depth below `path`; no globs, no slashes. */
  excludeDirs?: string[];
  /** Whether files and folders are searched whose names begin with a dot. */
  hidden?: boolean;
  /** Whether the rules of .gitignore, .ignore, .rgignore and .git/info/exclude apply, also outside of a git repository. */
  ignoreRules?: boolean;
  /** The largest size of the page: 1 to 16777216 bytes of JSON. A page has at least one entry. */
  maxBytes?: number;
  /** The longest time for the page, in milliseconds: 1 to 600000. */
  timeMs?: number;
  /** The `cursor` of the page before; null begins a search. All parameters but the limits of the page must be those of the first page. */
  cursor?: string | null;
  /** The client's name for the search: 1 to 64 characters, of no other open search of the session. With it the first page can be repeated, too, and `fs/endSearch` can end the search. Null for none. */
  searchId?: string | null;
}

/** A page of files. */
export interface FsGlobResult {
  /** The files, below the `path` of the request, in no order. */
  paths: string[];
  /** The limit that ended the page: `maxFiles`, `maxBytes` or `timeMs`. Null if all files were found. */
  truncated: "files" | "bytes" | "time" | null;
  /** Continues the search after this page; null if it is complete. */
  cursor: string | null;
  /** Messages about folders that could not be read until now; at most 20. */
  unread: string[];
}

/**
 * Move a finished file to its destination, which has all of the new content or all of the old one.
 *
 * The file is renamed. It gets the owner, access list, extended attributes and permission bits of a replaced file. A destination that cannot be renamed to is written in place: a mount point, a file of another owner, or a file in a folder that takes no new names or is on another file system. A failure then restores the old content, if there was room to keep it; only a kill leaves a part of the new one.
 */
export interface FsInstallParams {
  /** The finished file: a regular file, not a link. It is removed. */
  sourcePath: string;
  /** The full path of the destination; links are followed. The folder above it must exist. */
  destinationPath: string;
  /** The permission bits as a number; null for those of the replaced file, else of the source. */
  permissions?: number | null;
  /** The time of the last change, in nanoseconds since 1970; null for that of the source. */
  modifiedAtNs?: number | null;
  /** The time of the last access, in nanoseconds since 1970; null for that of the source. */
  accessedAtNs?: number | null;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The file or copy is at its destination. */
export interface FsInstallResult {
  /** Whether the existing file could not be replaced, and was written in place. */
  inPlace?: boolean;
}

/**
 * Open a file for reading or writing in blocks.
 *
 * The handle belongs to the connection, which may have 128, and stays valid if its file is renamed or removed.
 */
export interface FsOpenParams {
  /** The client's name for the handle: at most 32 bytes of UTF-8, not in use on this connection. */
  handleId: string;
  /** The file to open; links are followed. */
  path: string;
  /** `read` opens an existing regular file; `replace` creates a file, or truncates it at once. */
  mode?: "read" | "replace";
  /** The permission bits of a file that `replace` creates, as a number, without the bits of the daemon's umask. Null for 0666. */
  permissions?: number | null;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The handle is open. */
export interface FsOpenResult {
  /** The client's name for the handle. */
  handleId: string;
}

/**
 * Create directories and small files, or replace files, one after the other, in the given order.
 *
 * Each file has all of its new content, or is as it was before, as with `fs/install`, which also says when a file is written in place. If an entry fails, the others are carried out all the same. The request may be repeated.
 */
export interface FsPutFilesParams {
  /** The entries: 1 to 1000, with at most 4194304 bytes of content in total. */
  entries: PutEntry[];
  /** Whether an existing file keeps its permission bits, as with cp(1). */
  keepMode?: boolean;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The batch was carried out, apart from the entries with an `error`. */
export interface FsPutFilesResult {
  /** What became of each entry, in their order. */
  entries: PutOutcome[];
}

/**
 * Read a block of an open file at an offset.
 *
 * A failed system call closes the handle, such as reading from a handle for writing; a refused argument does not.
 */
export interface FsReadBlockParams {
  /** The `handleId` of the `fs/open`. */
  handleId: string;
  /** The start of the block, in bytes from the beginning of the file. */
  offset: number;
  /** How many bytes to read: 1 to 1048576. */
  len: number;
  /** If it limits files, the handle must have been opened with the same limits. */
  sandbox?: SandboxContext | null;
}

/** A block of a file. */
export interface FsReadBlockResult {
  /** The bytes; empty at and after the end of the file. */
  chunk: string;
  /** Whether the block has fewer bytes than requested; false if it ends exactly at the end of the file. */
  eof: boolean;
}

/**
 * List the names in one directory, in no order.
 *
 * Dangling links are omitted. An entry that is neither a directory nor a file has both flags false.
 */
export interface FsReadDirectoryParams {
  /** The path of the request. */
  path: string;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The names in a directory. */
export interface FsReadDirectoryResult {
  /** All names but `.` and `..`, in no order. */
  entries: DirectoryEntry[];
}

/**
 * Read a whole file; links are followed.
 *
 * At most 512 MiB. Use `fs/open` and `fs/readBlock` for larger files, and for files whose reply would not fit into a WebSocket message of 64 MiB. A directory, a fifo and a device are refused. A file that reports no size, such as those of `/proc`, is read to its end.
 */
export interface FsReadFileParams {
  /** The path of the request. */
  path: string;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** A whole file. */
export interface FsReadFileResult {
  /** The content of the file. */
  dataBase64: string;
}

/** Remove a file, a link or a directory; a link is removed itself, never its target. */
export interface FsRemoveParams {
  /** The path of the request. */
  path: string;
  /** Whether a directory is removed with its content; otherwise only an empty directory is removed. */
  recursive?: boolean;
  /** Whether a missing path is no error. Other errors are still reported. */
  force?: boolean;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** Success, without further information. */
export type FsRemoveResult = Record<string, never>;

/**
 * Rename a file, a link or a directory atomically: at no time do both names exist, or neither.
 *
 * Open handles stay with their file, and a link is renamed itself, never its target. Both paths must be on one file system. If both are names of the same file, nothing happens.
 */
export interface FsRenameParams {
  /** What to rename. */
  sourcePath: string;
  /** The full new path, not only its folder; the folder above it must exist. */
  destinationPath: string;
  /** Whether a file may replace a file, and a directory an empty directory; otherwise an existing destination is an error. */
  overwrite?: boolean;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** Success, without further information. */
export type FsRenameResult = Record<string, never>;

/**
 * Search files for lines with a text, page by page. Links are followed for `path` only.
 *
 * A file is searched up to its first NUL byte. A page can be repeated until the next one is requested.
 */
export interface FsSearchParams {
  /** The path of the request. */
  path: string;
  /** The text: 1 to 65536 characters. A newline needs `regex` and `multiline`. */
  pattern: string;
  /** Whether `pattern` is a regular expression, with the syntax of Rust's crate `regex`. */
  regex?: boolean;
  /** Whether case does not matter. */
  ignoreCase?: boolean;
  /** Whether a match may span lines; only with `regex`. */
  multiline?: boolean;
  /** The files that are searched: those that one of the globs matches. Empty for all. */
  globs?: string[];
  /** How many lines before and after each match are in the result: 0 to 20. */
  contextLines?: number;
  /** `lines` for all matches; `files` for the files that have one, without their lines. */
  output?: "lines" | "files";
  /** How many matches, or files for the output `files`, the page has: 1 to 100000. */
  maxMatches?: number;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
  /** Names of folders that are not entered, at any depth below `path`; no globs, no slashes. */
  excludeDirs?: string[];
  /** Whether files and folders are searched whose names begin with a dot. */
  hidden?: boolean;
  /** Whether the rules of .gitignore, .ignore, .rgignore and .git/info/exclude apply, also outside of a git repository. */
  ignoreRules?: boolean;
  /** The largest size of the page: 1 to 16777216 bytes of JSON. A page has at least one entry. */
  maxBytes?: number;
  /** The longest time for the page, in milliseconds: 1 to 600000. */
  timeMs?: number;
  /** The `cursor` of the page before; null begins a search. All parameters but the limits of the page must be those of the first page. */
  cursor?: string | null;
  /** The client's name for the search: 1 to 64 characters, of no other open search of the session. With it the first page can be repeated, too, and `fs/endSearch` can end the search. Null for none. */
  searchId?: string | null;
}

/** A page of a search. */
export interface FsSearchResult {
  /** The files with matches, in no order; all of a file's matches follow each other. */
  files: SearchedFile[];
  /** The limit that ended the page: `maxMatches`, `maxBytes` or `timeMs`. Null if the search is complete. */
  truncated: "matches" | "bytes" | "time" | null;
  /** Continues the search after this page; null if it is complete. */
  cursor: string | null;
  /** Messages about files and folders that could not be read until now; at most 20. */
  unread: string[];
  /** How many files were searched; null while the search is not complete. */
  searchedFiles: number | null;
}

/** Set the permission bits and the times of a file or a directory; links are followed. */
export interface FsSetMetadataParams {
  /** The path of the request. */
  path: string;
  /** The permission bits as a number, such as 420 for 0644; null keeps them. */
  permissions?: number | null;
  /** The time of the last change of the content, in nanoseconds since 1970; null keeps it. */
  modifiedAtNs?: number | null;
  /** The time of the last access, in nanoseconds since 1970; null keeps it. */
  accessedAtNs?: number | null;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** Success, without further information. */
export type FsSetMetadataResult = Record<string, never>;

/** End a watch and forget its changes. It is no error if there is none of that name. */
export interface FsUnwatchParams {
  /** The `watchId` of the `fs/watch`. */
  watchId: string;
}

/** Success, without further information. */
export type FsUnwatchResult = Record<string, never>;

/**
 * List files and directories below a root, breadth first.
 *
 * Names are sorted by their bytes. The root itself and special files are not listed. A root that is not a directory has no entries.
 */
export interface FsWalkParams {
  /** The path of the request. */
  path: string;
  /** The limits of the walk, and the directories that it enters. */
  options: WalkOptions;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The result of a walk. */
export interface FsWalkResult {
  /** Files and directories, breadth first, including directories that could not be read. */
  entries: WalkEntry[];
  /** The directories that could not be read; the walk continued without them. */
  errors: WalkFailure[];
  /** Whether `maxDirectories` or `maxEntries` ended the walk; the depth does not count. */
  truncated: boolean;
}

/**
 * Watch a file or a directory, by default with everything below it, until the session ends.
 *
 * A change after the answer is never missed. Changes are numbered and logged in the session; they are sent as `fs/changed`, and `fs/watchRead` reads them after a cursor. Links below the root are not followed.
 */
export interface FsWatchParams {
  /** The path of the request. */
  path: string;
  /** The client's name for the watch, 1 to 64 bytes, unique in the session. */
  watchId: string;
  /** Whether directories below the root are watched, too. */
  recursive?: boolean;
  /** Whether paths are left out that `.gitignore`, `.ignore`, `.rgignore` and `.git/info/exclude` ignore: at or below the root, and above it up to the repository's own folder. A changed file at or below the root takes effect, with a `gap` for its folder. */
  ignoreRules?: boolean;
  /** Names of directories that are left out at any depth, such as `.git` and `node_modules`. */
  excludeDirs?: string[];
  /** `attach` answers with the state of a watch of that name and the same parameters; others are refused. */
  ifExists?: "fail" | "attach";
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** The watch is active. */
export interface FsWatchResult {
  /** The client's name for the watch. */
  watchId: string;
  /** `polling` on network mounts and FUSE: the tree is listed every two seconds, at most 50,000 entries. */
  mode: "inotify" | "polling";
  /** The number that the next change will have; 1 for a new watch. */
  nextSeq: number;
}

/**
 * Send an event once when a missing path appears, or when a present one disappears.
 *
 * The event `fs/missingChanged` is also sent if a missing folder above one of the paths appears. A connection has one watch: a new watch with a greater id ends the previous one.
 */
export interface FsWatchMissingParams {
  /** The client's number for the watch, greater than all earlier ones of this connection. */
  watchId: number;
  /** The missing paths to watch: 1 to 64. */
  missing: string[];
  /** An existing path whose disappearance is reported, too; null for none. */
  present?: string | null;
}

/** Whether the watch is active. */
export interface FsWatchMissingResult {
  /** False if there is nothing to wait for: a path exists already or is not accessible, `present` does not exist, `missing` has no path or more than 64, or `watchId` is too low. */
  watching: boolean;
}

/**
 * Read the logged changes after a cursor.
 *
 * The answer is sent at once if there are changes, or if the watch has ended. At most 65,536 changes and 16 MiB of the log are kept. For a cursor before them, the first change is a `gap` for the root.
 */
export interface FsWatchReadParams {
  /** The `watchId` of the `fs/watch`. */
  watchId: string;
  /** The last number that the client has; 0 reads from the beginning. */
  afterSeq?: number;
  /** The maximum of changes in the answer. It also has at most 4 MiB of them. */
  maxChanges?: number;
  /** How long to wait for a change, in milliseconds; null or 0 answers at once. */
  waitMs?: number | null;
}

/** A page of changes, and the state of the watch. */
export interface FsWatchReadResult {
  /** The number of the first change; the others follow without gaps. `nextSeq` if there are none. */
  firstSeq: number;
  /** The changes after the cursor, oldest first. */
  changes: Change[];
  /** The next number: continue with `afterSeq` one below it. */
  nextSeq: number;
  /** Why the watch has ended and all its changes have been read; null otherwise. */
  ended: "rootRemoved" | "watchLimit" | "tooManyEntries" | "failed" | null;
  /** For people, with `ended`: why, and the way out. */
  message?: string;
}

/**
 * Write a block to an open file at an offset.
 *
 * All bytes are written, or there is an error. A gap before the offset reads as zeros.
 */
export interface FsWriteBlockParams {
  /** The handle, opened with the mode `replace`. */
  handleId: string;
  /** The start of the block, in bytes from the beginning; the block must end before 2^63. */
  offset: number;
  /** The bytes to write: 1 to 1048576. */
  chunk: string;
  /** If it limits files, the handle must have been opened with the same limits. */
  sandbox?: SandboxContext | null;
}

/** Success, without further information. */
export type FsWriteBlockResult = Record<string, never>;

/**
 * Create a file, or replace the content of one in place.
 *
 * An existing file keeps its inode, mode and links. A new file gets the mode 0666 without the bits of the daemon's umask; its folder must exist. If the disk is full, the old content is kept.
 */
export interface FsWriteFileParams {
  /** The path of the request. */
  path: string;
  /** The new content of the file; may be empty. */
  dataBase64: string;
  /** What the request may access; null means no limit. */
  sandbox?: SandboxContext | null;
}

/** Success, without further information. */
export type FsWriteFileResult = Record<string, never>;

/**
 * Make an HTTP request from the executor.
 *
 * A response with any status is a result; an incomplete response is an error. Up to 10 redirects are followed. With `streamResponse` the result is sent after the head of the response, and the body in `http/request/bodyDelta` events. Streams end with the connection.
 */
export interface HttpRequestParams {
  /** The method, sent as it is given. */
  method: string;
  /** The URL, with the scheme `http` or `https`. */
  url: string;
  /** The client's name for the request, not in use by another stream of the connection. */
  requestId: string;
  /** The headers to send, in this order. */
  headers?: HttpHeader[];
  /** The body to send; null for none. */
  bodyBase64?: string | null;
  /** The limit for the request and the whole response, in milliseconds; null for no limit; 0 fails at once. */
  timeoutMs?: number | null;
  /** `follow` follows redirects; `stop` returns the redirect as the result. */
  redirectPolicy?: "follow" | "stop";
  /** Whether the body is sent in events instead of the result. */
  streamResponse?: boolean;
}

/** The response, or its head if it is streamed. */
export interface HttpRequestResult {
  /** The status code of the response. */
  status: number;
  /** The headers of the response, in their order. */
  headers: HttpResponseHeader[];
  /** The body as received, at most 47 MiB; empty if it is streamed. */
  bodyBase64: string;
}

/**
 * Open a session, or resume a detached one.
 *
 * The first request of every connection; it may be repeated if it fails. After the result, the client sends the notification `initialized`, and then any other request. A session owns processes. On sockets it outlives its connection, and can be resumed for 80 seconds (`--session-ttl`), or as long as its client asks for by `session/setTtl`.
 */
export interface InitializeParams {
  /** The name of the client program, for logs; may be empty. */
  clientName: string;
  /** The `sessionId` of a detached session to resume; null opens a new session. */
  resumeSessionId?: string | null;
  /** The requested extension members of this connection; null for none. */
  extensions?: Extensions | null;
}

/** The session to which the connection is attached from now on. */
export interface InitializeResult {
  /** The id of the session, a UUID as text, for resuming the session. */
  sessionId: string;
  /** The executor's host, as in `environment/info`. */
  environmentInfo: EnvironmentInfo;
  /** The families of extension members that this connection gets, each with its version. */
  extensions?: Record<string, number>;
  /** How long this session and its processes are kept without a connection, in milliseconds. */
  sessionTtlMs?: number;
}

/**
 * List the TCP ports that the descendants of a session's processes listen on.
 *
 * Also those inside a sandbox with a network of its own.
 */
export interface PortListParams {
  /** The session to list; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
  /** Whether to list the ports of every session; under the same condition, and not with `sessionId`. */
  allSessions?: boolean;
  /** True: from this result on, the connection gets a `port/listening` for each change of what the request lists, in place of an earlier watch. False: it gets none any more. Null changes nothing. */
  watch?: boolean | null;
}

/** The ports, in the order of their numbers. */
export interface PortListResult {
  /** Each listening socket once. */
  ports: PortEntry[];
}

/**
 * Open a byte stream to a listener of `port/list`.
 *
 * The stream is a process of this session. Its `stdout` is what the listener sends, and `process/write` sends to the listener. `process/closeStdin` ends that direction; when the listener ends the other one, the stream writes `eof` and a newline to `stderr`, after all bytes of `stdout`. It exits with 0 once both have ended, and with 1 if the connection breaks, whose reason is its `stderr`. Its output is never dropped: while more than 8 MiB of it are not sent, or after a resume not read, the listener has to wait. The same request for a stream that exists is answered again, and opens nothing.
 */
export interface PortOpenParams {
  /** The name of the stream, as in `process/start`: chosen by the client, and unique in the session. */
  processId: string;
  /** The TCP port. */
  port: number;
  /** The address as in `port/list`, to choose one of several listeners; null for any. */
  address?: string | null;
  /** The `processId` of the process whose descendant listens, to choose one of several; null for any. */
  ofProcess?: string | null;
  /** The session whose process listens; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. The stream belongs to the connection's own session. */
  sessionId?: string | null;
}

/** The stream, which is connected. */
export interface PortOpenResult {
  /** The name of the stream, as in the request. */
  processId: string;
  /** The address of the listener, as in `port/list`. */
  address: string;
  /** The TCP port of the listener. */
  port: number;
}

/**
 * End the standard input of a process, which reads end of file after all accepted writes.
 *
 * It is no error if the input is closed or the process has ended. A process on a terminal is refused: write the byte 0x04 at the start of a line.
 */
export interface ProcessCloseStdinParams {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The session of the process; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
}

/** The result of closing. */
export interface ProcessCloseStdinResult {
  /** `accepted`: further writes are refused, and end of file follows the accepted ones. `unknownProcess`: there is no process of that id. `stdinClosed`: the process was started without `pipeStdin`. */
  status: "accepted" | "unknownProcess" | "stdinClosed";
}

/** List the processes of one or all sessions: running ones, and ended ones that are still kept. */
export interface ProcessListParams {
  /** The session to list; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
  /** Whether to list the processes of every session; under the same condition, and not with `sessionId`. */
  allSessions?: boolean;
  /** Whether to include command lines and working folders. Command lines may contain secrets. */
  argv?: boolean;
}

/** The list of processes. */
export interface ProcessListResult {
  /** The processes, in the order of their starts. */
  processes: ProcessEntry[];
}

/**
 * List processes that the daemon no longer keeps: why, since when, and how they ended.
 *
 * Those of all sessions over a Unix socket, or over WebSocket with `--ws-auth`, else those of the connection's own session. The daemon remembers the newest 1,000 of each `reason` for a day, as long as the service runs; but none with a `processId` of more than 256 characters.
 */
export interface ProcessListForgottenParams {
  /** The `processId` of the processes to list; null for all. */
  processId?: string | null;
}

/** The list of forgotten processes. */
export interface ProcessListForgottenResult {
  /** The processes, in the order of `atMs`. */
  processes: ForgottenEntry[];
}

/**
 * Read the retained output of a process after a cursor, and its state.
 *
 * The answer is sent at once if there is output, if the process is closed, or if it has exited and the cursor is before that event; otherwise the request waits for an event. A process can be read for 80 seconds (`--process-ttl`) after it closed. By default the newest 64 MiB of output are retained (`--retained-output-bytes`).
 */
export interface ProcessReadParams {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The last sequence number that the client has; null or 0 reads from the beginning. */
  afterSeq?: number | null;
  /** The maximum of raw bytes of output, though always at least one chunk; null for a page of at most 8 MiB. */
  maxBytes?: number | null;
  /** How long to wait for an event, in milliseconds; null or 0 answers at once. */
  waitMs?: number | null;
  /** The session of the process; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
  /** Whether the result has the sizes of the terminal; null for false. */
  sizes?: boolean | null;
}

/** A page of retained output, and the state of the process. */
export interface ProcessReadResult {
  /** The retained chunks after the cursor, oldest first. */
  chunks: OutputChunk[];
  /** The next number: continue with `afterSeq` one below it. */
  nextSeq: number;
  /** Whether the leader has ended. False in a page without `maxBytes` that was cut. */
  exited: boolean;
  /** The exit status, or 128 + N for death by signal N; null before `exited`. */
  exitCode: number | null;
  /** Whether the leader has ended and all output has been read. False in a page without `maxBytes` that was cut. */
  closed: boolean;
  /** Why the command did not run, if its sandbox could not be set up; null otherwise. */
  failure: string | null;
  /** Whether a sandbox seems to have stopped the command, by its exit code and keywords in its output, as the agent judges it; false without a sandbox. */
  sandboxDenied: boolean;
  /** The indications for that. Only for an exited process with a sandbox. */
  denial?: Denial;
  /** The processes that the command had left running. Only if there were any. */
  endedWithSandbox?: EndedWithSandbox;
  /** Why the process ended, once it has: by itself (`normal`), by a signal, by a `process/terminate`, by `timeoutMs` or `idleTimeoutMs`, with its session, with the daemon, for lack of memory, or by a limit of the system. `unknown` after a crash of the daemon. */
  cause?: "normal" | "signal" | "terminated" | "timeout" | "idleTimeout" | "sessionExpired" | "serviceStop" | "outOfMemory" | "limit" | "unknown";
  /** The limit that ended the process. Only if it was one of `limits`. */
  limit?: LimitHit;
  /** What the process and its descendants used until its end. Only for an exited process with `limits`. */
  usage?: ExitUsage;
  /** The sizes of the terminal, oldest first: the one at the cursor, and each that a client has set since then. The newest 1024 are known. Only if `sizes` was requested, and with a terminal. */
  sizes?: SizeChange[];
  /** The number of the oldest retained chunk; present only if output after the cursor was lost. */
  firstSeq?: number;
  /** How many bytes after the cursor are no longer retained; present only if some were lost. */
  lostBytes?: number;
}

/**
 * Set the size of a process's terminal. If it changed, the foreground process group gets SIGWINCH.
 *
 * An unknown process and a process without a terminal are refused.
 */
export interface ProcessResizeParams {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The new size of the terminal. */
  size: TerminalSize;
  /** The session of the process; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
}

/** The state of the process. */
export interface ProcessResizeResult {
  /** Whether the leader was still running; otherwise nothing was done. */
  running: boolean;
}

/**
 * Send a signal to the process group of a process, to its leader, or to all its descendants.
 *
 * In a sandbox the command inside gets the signal, and SIGKILL ends the sandbox whatever the scope. It is no error if the process has ended or is unknown.
 */
export interface ProcessSignalParams {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** `interrupt`, which is SIGINT, or the name of any signal: `SIGHUP`, `SIGTERM`, `SIGUSR1`, `SIGSTOP`, `SIGCONT`, `SIGWINCH`, `SIGRTMIN` to `SIGRTMIN+30`, and so on; case-sensitive. */
  signal: string;
  /** `group` is the process group of the leader, while the leader runs. `leader` is the leader alone. `tree` is the leader and every descendant, also after `setsid` and after the end of the leader. */
  scope?: "group" | "leader" | "tree";
  /** The session of the process; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
}

/** The result on connections with extensions; empty on others. */
export interface ProcessSignalResult {
  /** `delivered`: the signal was sent, or will be as soon as the sandbox runs the command. `alreadyExited`: no process was left. `unknownProcess`: there is no process of that id. */
  status?: "delivered" | "alreadyExited" | "unknownProcess";
}

/**
 * Start a process, on pipes or on a terminal.
 *
 * It leads a process session and a process group of its own, and belongs to the session of the connection. Its output is sent as `process/output` events, followed by `process/exited` and `process/closed`; no event is sent before the answer. Without `tty` and `pipeStdin` its standard input is at end of file. After a failed start the id is free and no event is sent.
 */
export interface ProcessStartParams {
  /** The client's name for the process, unique within the session: any string, also an empty one. It is free again 80 seconds (`--process-ttl`) after `process/closed`. */
  processId: string;
  /** The program and its arguments: at least one string, none with a NUL in it. A program without a slash is looked up in `PATH` of the child's environment, one with a slash is relative to `cwd`. */
  argv: string[];
  /** The folder in which the process starts. */
  cwd: string;
  /** Variables by name: without `envPolicy` the whole environment of the child. */
  env: Record<string, string>;
  /** Whether the process gets a terminal, of 24 rows and 80 columns unless `size` says otherwise; its output is then the one stream `pty`, and what it reads is given by `process/write`. */
  tty: boolean;
  /** Whether standard input stays open for `process/write`; without effect with `tty`. */
  pipeStdin?: boolean;
  /** The name that the program gets as its argument 0; null for the first of `argv`. */
  arg0?: string | null;
  /** How to make the environment from the daemon's own; null inherits nothing. */
  envPolicy?: EnvPolicy | null;
  /** What the process may access; null means no limit. Limits that cannot be enforced are refused. */
  sandbox?: SandboxContext | null;
  /** Whether `networkProxy` is the only way out of the sandbox, whatever the sandbox says of the network. Needs `networkProxy`; without effect without a sandbox. */
  enforceManagedNetwork?: boolean;
  /** What stays reachable in such a network; null means nothing. Without effect in this version. */
  managedNetwork?: ManagedNetwork | null;
  /** A network proxy for the process, which variables name to its programs; null for none. Without `enforceManagedNetwork` programs may ignore it. */
  networkProxy?: NetworkProxy | null;
  /** A request to restore the state of a login shell instead of running the account's profile again, where that makes no difference but in time (`docs/protocol.md`, "Shell snapshots"). */
  shellSnapshot?: ShellSnapshot | null;
  /** The origin of the request, for logs; null if it is not given. */
  metadata?: ProcessMetadata | null;
  /** How long the process may run, in milliseconds from its start; then it is killed with all its descendants, whether or not a client is connected. Null for no limit. */
  timeoutMs?: number | null;
  /** How long the process may go without output and without an accepted write, in milliseconds; then it is killed in the same way. Null for no limit. */
  idleTimeoutMs?: number | null;
  /** What to do if the id is in use. `fail` refuses. `attach` starts nothing and answers as the first start did if the parameters are equal, also if that process has ended; otherwise it refuses, and names a parameter that differs. So a start can be repeated if its answer was lost. The parameters of the first start are only known if it had `attach` too, or if its connection has extension members. */
  ifExists?: "fail" | "attach";
  /** The size of the terminal; null for 24 rows and 80 columns. Refused without `tty`. */
  size?: TerminalSize | null;
  /** How long the process may clean up at `timeoutMs`, `idleTimeoutMs` or `wallMs`, in milliseconds: its group gets SIGTERM, and what is left of it and its descendants after that time is killed. Null kills at once. Refused without a limit in time. */
  graceMs?: number | null;
  /** What the process and its descendants may use together; null for the executor's default. */
  limits?: ResourceLimits | null;
}

/** The process runs. */
export interface ProcessStartResult {
  /** The client's name for the process. */
  processId: string;
  /** `none` without a sandbox context, else the kind of sandbox of this platform: `linuxSeccomp`, also if the context limits nothing. Only connections with extensions get `linuxLandlock`. */
  sandboxType: "none" | "linuxSeccomp" | "linuxLandlock" | "macosSeatbelt";
  /** The mechanism that enforces the sandbox: `bubblewrap`, `landlock`, `seccomp`, `seatbelt`, or the name of a backend that the daemon's operator has added; `none` if there is nothing to enforce. Only with a sandbox context. */
  sandboxBackend?: string;
  /** The process id of the leader on the executor, which is also the id of its process group. With a sandbox, the id of the program outside that created it. */
  pid?: number;
  /** Present if the process existed already and nothing was started. */
  attached?: true;
  /** The number of the start in the daemon's audit folder. Missing if the daemon has none. */
  audit?: number;
  /** Why the command runs in a login shell although there is a `shellSnapshot`: a sentence for people. Missing if the snapshot was restored. */
  snapshotObstacle?: string;
}

/**
 * Follow a process of another session: its events after a number are sent on this connection, too.
 *
 * The events have the member `sessionId`, and end with `process/closed`. A slow connection loses events, as reported by `lostBytes`, and does not delay other connections. The subscription ends with the connection; a second one for the same process replaces the first.
 */
export interface ProcessSubscribeParams {
  /** The session of the process, other than the connection's own. It is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId: string;
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The last sequence number that the client has; 0 for all retained output. */
  afterSeq?: number;
  /** Whether this connection may resize the terminal of the process, like its owner, until another connection subscribes interactively. */
  interactive?: boolean;
}

/** The state of the process before the events that follow. */
export interface ProcessSubscribeResult {
  /** The number that the next event will have. */
  nextSeq: number;
  /** Whether the leader has ended. */
  exited: boolean;
  /** The exit status, or 128 + N for death by signal N; null while the leader runs. */
  exitCode: number | null;
  /** Whether the leader has ended and all output has been read. */
  closed: boolean;
  /** Whether the process has a terminal. */
  tty: boolean;
  /** The size of the terminal, while it is open. */
  size?: WrittenSize;
  /** The process id of the leader on the executor. */
  pid: number;
}

/**
 * Kill a process with SIGKILL: its process group, or every descendant that it ever had.
 *
 * It does not wait for other requests of the process, and cancels a start that is not finished.
 */
export interface ProcessTerminateParams {
  /** The `processId` of the `process/start`; an unknown one is no error. */
  processId: string;
  /** `group` kills the process group while its leader runs. `tree` kills every descendant, also after `setsid` and after the end of the leader. */
  scope?: "group" | "tree";
  /** The session of the process; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
}

/** The result of the kill. */
export interface ProcessTerminateResult {
  /** Whether the leader was still running. */
  running: boolean;
  /** With the scope `tree`: the ids of processes that could not be killed, normally none. */
  survivors?: number[];
}

/**
 * Stop following a process of another session.
 *
 * No event of it is sent after the answer. It is no error if there is no subscription.
 */
export interface ProcessUnsubscribeParams {
  /** The session of the process. */
  sessionId: string;
  /** The `processId` of the `process/start`. */
  processId: string;
}

/** Success, without further information. */
export type ProcessUnsubscribeResult = Record<string, never>;

/**
 * Write to the standard input or the terminal of a process.
 *
 * Bytes reach the process in the order of the requests. Up to 64 MiB are queued for a process that does not read; beyond that the answer is delayed. On a terminal, control characters act as keys: 0x03 interrupts, 0x04 at the start of a line is end of file.
 */
export interface ProcessWriteParams {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The bytes to write; may be empty. */
  chunk: string;
  /** The client's name for this write, not empty. An id that was accepted before is accepted again without writing, so that a write can be repeated after a lost connection. The last 4096 ids of a process are remembered, and another 4096 of other sessions. */
  writeId: string;
  /** Whether to refuse a write to a terminal in canonical mode that would drop a part of a line, because the line is longer than 4,095 bytes. Nothing of such a write is queued. Without effect on a pipe. */
  wholeLines?: boolean;
  /** The session of the process; null for the connection's own. Another session is accessible only on a Unix socket, or with `--ws-auth`. */
  sessionId?: string | null;
}

/** The result of the write. */
export interface ProcessWriteResult {
  /** `accepted`: the bytes are queued, though the process may never read them. `unknownProcess`: there is no process of that id. `starting`: the process does not run yet. `stdinClosed`: the process was started with neither `tty` nor `pipeStdin`, or its standard input was closed. */
  status: "accepted" | "unknownProcess" | "starting" | "stdinClosed";
}

/** Absent, null or `{}`; anything else is refused. */
export type RpcDiscoverParams = Record<string, never>;

/**
 * Describe all methods and events as an OpenRPC document.
 *
 * The request is allowed before `initialize`. The document is `schemas/openrpc.json` of this version; that folder also has a JSON Schema for each message.
 */
export interface RpcDiscoverResult {
  /** The version of the OpenRPC specification that the document follows. */
  openrpc: string;
  /** The title, the version of the daemon, and a description of the wire. */
  info: Record<string, unknown>;
  /** All methods, with parameters in the order of the array form, results and errors. */
  methods: Array<Record<string, unknown>>;
  /** The schemas of shared objects, by name. */
  components: Record<string, unknown>;
}

/** Absent, null or `{}`; anything else is refused. */
export type ServerHealthParams = Record<string, never>;

/**
 * Report the state of the daemon in numbers (`docs/how-to/monitor.md`).
 *
 * The numbers are of the whole daemon; there are no ids, names or paths. The request is allowed before `initialize`, and creates no session.
 */
export interface ServerHealthResult {
  /** `draining` while no new sessions are opened, `stopping` once the service shuts down, else `ok`. */
  status: "ok" | "draining" | "stopping";
  /** The version of the daemon. */
  version: string;
  /** The process id of the server on the executor. */
  pid: number;
  /** How long the server has run, in seconds. */
  uptimeSeconds: number;
  /** The number of open connections, including this one. */
  connections: number;
  /** The number of sessions, attached and detached. */
  sessions: number;
  /** The number of processes that are not closed. */
  processes: number;
  /** Bytes of retained output of all processes. */
  retainedOutputBytes: number;
  /** The limit above which the oldest output is dropped (`--spool-max-bytes`). */
  retainedOutputLimitBytes: number;
  /** Bytes of accepted input that processes have not read yet. */
  queuedInputBytes: number;
  /** Bytes of output since the start that readers missed because they were dropped. */
  lostOutputBytes: number;
  /** Whether commands and changes of files without a sandbox that limits files are refused, by the setting `require_sandbox`. */
  requireSandbox: boolean;
  /** The audit folder. Missing if the daemon has none (setting `audit_dir`). */
  audit?: AuditHealth;
}

/** Absent, null or `{}`; anything else is refused. */
export type SessionEndParams = Record<string, never>;

/**
 * End the session and kill its processes.
 *
 * Every process of the session is killed with all its descendants, also after `setsid` and after the end of the leader. Their retained output is dropped, and the id of the session becomes unknown. The answer is sent once no process is left; then the daemon closes the connection with its file handles and watches.
 */
export type SessionEndResult = Record<string, never>;

/**
 * Set how long the daemon keeps the session of this connection without a connection.
 *
 * The time begins anew at each end of a connection; then the session ends with its processes, unless a client resumes it. It belongs to the session: a resume keeps it, also at a new server. On stdio, where the session ends with its connection, it has no effect.
 */
export interface SessionSetTtlParams {
  /** In milliseconds, at most the daemon's `--max-session-ttl`; null for the daemon's `--session-ttl`. */
  ttlMs: number | null;
}

/** The time that is in force. */
export interface SessionSetTtlResult {
  /** How long the session and its processes are kept without a connection, in milliseconds. */
  sessionTtlMs: number;
}

/** The requests of the client, by their methods. */
export interface Methods {
  "capabilities/discoverV2": { params: CapabilitiesDiscoverV2Params; result: CapabilitiesDiscoverV2Result };
  "capabilityRoots/discoverV1": { params: CapabilityRootsDiscoverV1Params; result: CapabilityRootsDiscoverV1Result };
  "environment/info": { params: EnvironmentInfoParams; result: EnvironmentInfoResult };
  "environment/status": { params: EnvironmentStatusParams; result: EnvironmentStatusResult };
  "environmentConfig/read": { params: EnvironmentConfigReadParams; result: EnvironmentConfigReadResult };
  "fs/applyEdits": { params: FsApplyEditsParams; result: FsApplyEditsResult };
  "fs/canonicalize": { params: FsCanonicalizeParams; result: FsCanonicalizeResult };
  "fs/close": { params: FsCloseParams; result: FsCloseResult };
  "fs/copy": { params: FsCopyParams; result: FsCopyResult };
  "fs/createDirectory": { params: FsCreateDirectoryParams; result: FsCreateDirectoryResult };
  "fs/digest": { params: FsDigestParams; result: FsDigestResult };
  "fs/endSearch": { params: FsEndSearchParams; result: FsEndSearchResult };
  "fs/getFiles": { params: FsGetFilesParams; result: FsGetFilesResult };
  "fs/getMetadata": { params: FsGetMetadataParams; result: FsGetMetadataResult };
  "fs/glob": { params: FsGlobParams; result: FsGlobResult };
  "fs/install": { params: FsInstallParams; result: FsInstallResult };
  "fs/open": { params: FsOpenParams; result: FsOpenResult };
  "fs/putFiles": { params: FsPutFilesParams; result: FsPutFilesResult };
  "fs/readBlock": { params: FsReadBlockParams; result: FsReadBlockResult };
  "fs/readDirectory": { params: FsReadDirectoryParams; result: FsReadDirectoryResult };
  "fs/readFile": { params: FsReadFileParams; result: FsReadFileResult };
  "fs/remove": { params: FsRemoveParams; result: FsRemoveResult };
  "fs/rename": { params: FsRenameParams; result: FsRenameResult };
  "fs/search": { params: FsSearchParams; result: FsSearchResult };
  "fs/setMetadata": { params: FsSetMetadataParams; result: FsSetMetadataResult };
  "fs/unwatch": { params: FsUnwatchParams; result: FsUnwatchResult };
  "fs/walk": { params: FsWalkParams; result: FsWalkResult };
  "fs/watch": { params: FsWatchParams; result: FsWatchResult };
  "fs/watchMissing": { params: FsWatchMissingParams; result: FsWatchMissingResult };
  "fs/watchRead": { params: FsWatchReadParams; result: FsWatchReadResult };
  "fs/writeBlock": { params: FsWriteBlockParams; result: FsWriteBlockResult };
  "fs/writeFile": { params: FsWriteFileParams; result: FsWriteFileResult };
  "http/request": { params: HttpRequestParams; result: HttpRequestResult };
  "initialize": { params: InitializeParams; result: InitializeResult };
  "port/list": { params: PortListParams; result: PortListResult };
  "port/open": { params: PortOpenParams; result: PortOpenResult };
  "process/closeStdin": { params: ProcessCloseStdinParams; result: ProcessCloseStdinResult };
  "process/list": { params: ProcessListParams; result: ProcessListResult };
  "process/listForgotten": { params: ProcessListForgottenParams; result: ProcessListForgottenResult };
  "process/read": { params: ProcessReadParams; result: ProcessReadResult };
  "process/resize": { params: ProcessResizeParams; result: ProcessResizeResult };
  "process/signal": { params: ProcessSignalParams; result: ProcessSignalResult };
  "process/start": { params: ProcessStartParams; result: ProcessStartResult };
  "process/subscribe": { params: ProcessSubscribeParams; result: ProcessSubscribeResult };
  "process/terminate": { params: ProcessTerminateParams; result: ProcessTerminateResult };
  "process/unsubscribe": { params: ProcessUnsubscribeParams; result: ProcessUnsubscribeResult };
  "process/write": { params: ProcessWriteParams; result: ProcessWriteResult };
  "rpc.discover": { params: RpcDiscoverParams; result: RpcDiscoverResult };
  "server/health": { params: ServerHealthParams; result: ServerHealthResult };
  "session/end": { params: SessionEndParams; result: SessionEndResult };
  "session/setTtl": { params: SessionSetTtlParams; result: SessionSetTtlResult };
}

/** Ask the client whether a process may reach a host. */
export interface NetworkPolicyRequestParams {
  /** The client's name for the process. */
  processId: string;
  /** The host, and how the command asked for it. */
  request: NetworkRequest;
  /** The name of the question, which it keeps when it is asked again after a lost connection. */
  questionId?: string | null;
}

/** The client's answer to `network/policyRequest`. */
export interface NetworkPolicyRequestResult {
  /** What it decided. */
  decision: Decision;
}

/** The requests of the server, by their methods. */
export interface ServerMethods {
  "network/policyRequest": { params: NetworkPolicyRequestParams; result: NetworkPolicyRequestResult };
}

/**
 * The executor drains: this session goes on, and no new one is opened.
 *
 * For connections with extensions: sent when the drain begins, again if its end is set, and after each resume while it lasts. A drain that is cancelled is not reported.
 */
export interface ExecutorDrainingEvent {
  /** When the service ends at the latest, in milliseconds from now, with all its processes; null: it is not known that it ends. */
  endsInMs: number | null;
}

/** Changes of a watch, each sent once. After a resume, events continue with those not sent yet. */
export interface FsChangedEvent {
  /** The client's name for the watch. */
  watchId: string;
  /** The number of the first change; the others follow without gaps. */
  firstSeq: number;
  /** The changes, oldest first. Only the last event of a watch, the one with `ended`, may have none. */
  changes: Change[];
  /** Why the watch has ended; absent while it is active. No event follows. */
  ended?: "rootRemoved" | "watchLimit" | "tooManyEntries" | "failed";
  /** For people: why it has ended, and the way out. */
  message?: string;
}

/**
 * A watch of `fs/watchMissing` has detected a change, and has ended.
 *
 * Sent at most once for each watch.
 */
export interface FsMissingChangedEvent {
  /** The number of the watch. */
  watchId: number;
}

/**
 * A piece of the body of a streamed response.
 *
 * The last piece is empty and `done`, and has an `error` if the body is incomplete.
 */
export interface HttpRequestBodyDeltaEvent {
  /** The client's name for the request. */
  requestId: string;
  /** The number of the piece within its stream, from 1, without gaps. */
  seq: number;
  /** The bytes as received, at most 1 MiB. */
  deltaBase64: string;
  /** Whether this is the last piece; after it the `requestId` is free again. */
  done: boolean;
  /** Why the body is incomplete; null without an error. */
  error: string | null;
}

/** A decision of the proxy of a process. */
export interface NetworkPolicyDecisionEvent {
  /** The client's name for the process. */
  processId: string;
  /** When, in UTC, as RFC 3339 with milliseconds. */
  timestamp: string;
  /** What was decided about: a host, or something else such as a method. */
  scope: "domain" | "non_domain";
  /** What was decided. */
  decision: "allow" | "deny" | "ask";
  /** What decided: `baseline_policy`, `mode_guard`, `proxy_state` or `decider`, which is the client. */
  source: string;
  /** Why, such as `not_allowed`; the client's own words if it decided. */
  reason: string;
  /** How the command asked. */
  protocol: "http" | "https_connect" | "socks5_tcp" | "socks5_udp";
  /** The host that the command asked for. */
  host: string;
  /** The port that the command asked for. */
  port: number;
  /** The HTTP method; without one it was SOCKS5. */
  method?: string;
  /** The address of the command's end of the connection to the proxy. */
  client: string | null;
  /** Whether the client decided otherwise than the settings. */
  policyOverride: boolean;
}

/**
 * A process listens on a port, or does no longer.
 *
 * Sent to a connection with a watch (`watch` of `port/list`), within about a second of the change.
 */
export interface PortListeningEvent {
  /** The TCP port that it listens on. */
  port: number;
  /** The address that it is bound to, such as `127.0.0.1`, `0.0.0.0`, `::` or `::1`. */
  address: string;
  /** The family of the address. A socket on `::` may take IPv4 connections, too. */
  family: "ipv4" | "ipv6";
  /** The `processId` of the `process/start` whose descendant listens; null if that process is no longer kept. */
  processId: string | null;
  /** The session of that process. */
  sessionId: string;
  /** The process id, on the executor, of the process that listens; the lowest one if several share the socket. */
  pid: number;
  /** The name of that process as the kernel has it, at most 15 bytes. */
  name: string;
  /** Whether the socket is in another network namespace than the daemon, such as a sandbox with its own: then a connection from outside has to be made with `port/open`. */
  sandboxed: boolean;
  /** Whether it listens now. */
  listening: boolean;
}

/**
 * A process and its output have ended.
 *
 * Sent once, as the last event of the process. A descendant that keeps the output open delays it, but not on a terminal.
 */
export interface ProcessClosedEvent {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The session of the process; present only in events for a `process/subscribe`, if it is not the connection's own session. */
  sessionId?: string;
  /** The number of the event, the highest of the process. */
  seq: number;
}

/**
 * The leader of a process has ended.
 *
 * Sent once. Descendants may still write output.
 */
export interface ProcessExitedEvent {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The session of the process; present only in events for a `process/subscribe`, if it is not the connection's own session. */
  sessionId?: string;
  /** The number of the event, from the same counter as the output. */
  seq: number;
  /** The exit status, or 128 + N for death by signal N. */
  exitCode: number;
  /** Whether a sandbox seems to have stopped the command, by its exit code and keywords in its output, as the agent judges it; false without a sandbox. */
  sandboxDenied: boolean;
  /** The indications for that. Only for an exited process with a sandbox. */
  denial?: Denial;
  /** The processes that the command had left running. Only if there were any. */
  endedWithSandbox?: EndedWithSandbox;
  /** Why the process ended: by itself (`normal`), by a signal, by a `process/terminate`, by `timeoutMs` or `idleTimeoutMs`, with its session, with the daemon, for lack of memory on the machine, or by a limit: one of `limits`, which `limit` then names, or one of the system. `unknown` after a crash of the daemon. */
  cause?: "normal" | "signal" | "terminated" | "timeout" | "idleTimeout" | "sessionExpired" | "serviceStop" | "outOfMemory" | "limit" | "unknown";
  /** The limit that ended the process. Only if it was one of `limits`. */
  limit?: LimitHit;
  /** What the process and its descendants used until then. Only for a process with `limits`. */
  usage?: ExitUsage;
}

/** A process wrote something. */
export interface ProcessOutputEvent {
  /** The `processId` of the `process/start`. */
  processId: string;
  /** The session of the process; present only in events for a `process/subscribe`, if it is not the connection's own session. */
  sessionId?: string;
  /** The number of the event: one counter from 1 for all events of the process, without gaps. */
  seq: number;
  /** The stream of the output; `pty` for everything on a terminal. */
  stream: "stdout" | "stderr" | "pty";
  /** The bytes as written, at most 1 MiB, cut anywhere, also within a character. An empty chunk stands for output that was dropped because this connection was too slow. */
  chunk: string;
  /** When the server took the bytes from the process, in milliseconds since 1970. Not in an empty chunk. */
  at?: number;
  /** How many bytes were dropped before this chunk; present only if some were lost. */
  lostBytes?: number;
  /** The number of the first chunk after the gap; present only if some output was lost. */
  firstSeq?: number;
}

/** The events that the server sends, by their names. */
export interface Events {
  "executor/draining": ExecutorDrainingEvent;
  "fs/changed": FsChangedEvent;
  "fs/missingChanged": FsMissingChangedEvent;
  "http/request/bodyDelta": HttpRequestBodyDeltaEvent;
  "network/policyDecision": NetworkPolicyDecisionEvent;
  "port/listening": PortListeningEvent;
  "process/closed": ProcessClosedEvent;
  "process/exited": ProcessExitedEvent;
  "process/output": ProcessOutputEvent;
}
