// The messages between the page and its server: `execclient/console/server.py`, and the wire's `process/read` and
// `process/list` behind it.

export interface Opened {
  key: string
  write: boolean
  approvals: boolean
  daemon: string
  version: string
}

export interface Size {
  rows: number
  cols: number
}

/** An entry of `process/list`. */
export interface Entry {
  processId: string
  sessionId: string
  pid: number
  state: 'running' | 'exited' | 'closed'
  tty: boolean
  size?: Size
  startedAtMs: number
  ageMs: number
  exitCode: number | null
  cause: string | null
  lastSeq: number
  retainedBytes: number
  argv: string[] | null
  cwd: string | null
}

export interface Processes {
  state: 'connecting' | 'connected' | 'reconnecting'
  message: string
  notices: string[]
  processes: Entry[]
}

export interface Chunk {
  seq: number
  stream: 'stdout' | 'stderr' | 'pty'
  /** Base64. Empty for output that is no longer kept. */
  chunk: string
  /** Milliseconds since 1970; older daemons do not report it. */
  at?: number
}

export interface SizeChange extends Size {
  seq: number
  at: number
}

/** The result of `process/read`. */
export interface Page {
  chunks: Chunk[]
  nextSeq: number
  exited: boolean
  closed: boolean
  exitCode: number | null
  cause?: string
  failure?: string | null
  sizes?: SizeChange[]
  firstSeq?: number
  lostBytes?: number
}

export type Decision =
  | string
  | { acceptWithExecpolicyAmendment: { execpolicy_amendment: string[] } }
  | { applyNetworkPolicyAmendment: { network_policy_amendment: { host: string; action: string } } }

export interface Approval {
  id: number
  kind: 'command' | 'patch' | 'network'
  tool: string
  command: string
  cwd: string
  reason: string | null
  retry: boolean
  prompt: string
  permits: string[]
  paths: string[]
  diff: string | null
  network: { host: string; protocol: string; port: number } | null
  decisions: Decision[]
}

export interface FolderListing {
  entries: { name: string; kind: 'folder' | 'file' | 'other' }[]
  total: number
}

export type FileContent =
  | { kind: 'text'; size: number; text: string }
  | { kind: 'binary' | 'large'; size: number }

/** The events that the server pushes, by their names. */
export interface Events {
  processes: Processes
  approvals: Approval[]
}
