/**
 * Connect to a session, and replace a lost connection.
 *
 *     connect ── initialize {resumeSessionId} ──> attached ── process/read for each process ──> as before
 *        ^                  │ -32010, or lost again
 *        └── a pause ───────┘
 *
 * The limits are those of the Python client. `docs/protocol.md`, "Resuming".
 */

import { Connection } from "./connection.js";
import type { Channel, ConnectionHandlers } from "./connection.js";
import {
  AccessDenied, CallFailed, CallTimeout, ConnectionFailed, ConnectionLost, DaemonNotRunning, NoSuchProcess, ProtocolFault,
  Refused, SessionAttached, SessionLost,
} from "./errors.js";
import type { Inbox, ProcessState } from "./inbox.js";
import { sleep, unlessAborted, within } from "./waiting.js";
import type { InitializeResult, ProcessReadResult } from "./wire.js";

/** For a connection with its handshake. */
const CONNECT_MILLISECONDS = 10_000;

/** In which a lost connection must be replaced: a server needs up to 35 s to notice its end. */
export const RECOVERY_MILLISECONDS = 45_000;

/** The same while no server listens on this machine: the socket stays bound while a server is replaced. */
const NOT_LISTENING_MILLISECONDS = 2000;

/** Between two attempts. */
const FIRST_PAUSE_MILLISECONDS = 5;
const LONGEST_PAUSE_MILLISECONDS = 100;

/** After a connection that lasted this long there is no pause; after a shorter one without events there is. */
const STEADY_MILLISECONDS = 1000;

/** How long the first connection waits for a session that another connection has. */
const ATTACHED_MILLISECONDS = 8000;

/** Attempts to open a session while connections are lost before the answer. */
const HANDSHAKES = 10;

/** Bytes of output in one chunk, and in one page (`docs/protocol.md`, "Limits"). */
const MAX_CHUNK_BYTES = 1 << 20;
const MAX_PAGE_BYTES = 8 << 20;

/** A server to connect to. */
export interface Target {
  readonly url: string;
  /** Whether a session outlives its connection. */
  readonly recoverable: boolean;
  /** Throws `ConnectionFailed`. */
  open(): Promise<Channel>;
}

/** Connects to the server on behalf of a session. */
export class Connector {
  constructor(
    readonly target: Target,
    private readonly clientName: string,
    private readonly extensions: boolean,
    private readonly handlers: ConnectionHandlers,
  ) {}

  /** A connection after its handshake, and the result of `initialize`. */
  async connect(sessionId: string | undefined, signal?: AbortSignal): Promise<[Connection, InitializeResult]> {
    const connection = new Connection(await this.target.open(), this.handlers);
    try {
      const initialized = connection.request("initialize", {
        clientName: this.clientName,
        resumeSessionId: sessionId ?? null,
        extensions: this.extensions ? { execserver: 1 } : null,
      });
      const late = () => new CallTimeout("initialize", CONNECT_MILLISECONDS);
      const result = await unlessAborted(within(initialized, CONNECT_MILLISECONDS, late), signal);
      connection.notify("initialized");
      return [connection, result as InitializeResult];
    } catch (error) {
      connection.cut();
      throw error;
    }
  }
}

/**
 * The first connection of a client: to a new session, or to the session of another client.
 *
 * Throws `ConnectionFailed`, `SessionLost`, `SessionAttached`, `ExecutorDraining`, the reason of the signal.
 */
export async function join(
  connector: Connector, sessionId: string | undefined, signal?: AbortSignal,
): Promise<[Connection, InitializeResult]> {
  const begin = performance.now();
  for (let left = HANDSHAKES; ; ) {
    signal?.throwIfAborted();
    try {
      return await connector.connect(sessionId, signal);
    } catch (error) {
      if (error instanceof SessionAttached) {
        if (performance.now() - begin >= ATTACHED_MILLISECONDS) throw error;
      } else if (error instanceof Refused && sessionId !== undefined) {
        const text = `the session ${sessionId} cannot be resumed: ${error.wireMessage}`;
        throw new SessionLost(text, true, { cause: error });
      } else if (error instanceof ConnectionLost) {
        left -= 1;
        if (!left || !connector.target.recoverable) {
          throw new ConnectionFailed(`cannot connect to ${connector.target.url}: ${error.message}`, { cause: error });
        }
      } else {
        throw error;
      }
    }
    await sleep(LONGEST_PAUSE_MILLISECONDS);
  }
}

/** A new connection to the session. Throws `SessionLost` with the reason. */
async function resume(connector: Connector, sessionId: string, limit: number, notListening: number): Promise<Connection> {
  const begin = performance.now();
  let lastListening = begin;
  let reason: Error;
  for (let pause = FIRST_PAUSE_MILLISECONDS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MILLISECONDS)) {
    try {
      return (await connector.connect(sessionId))[0];
    } catch (error) {
      reason = error as Error;
      if (error instanceof DaemonNotRunning) {
        if (performance.now() - lastListening >= notListening) {
          throw new SessionLost(`the daemon has ended: ${error.message}`, true, { cause: error });
        }
      } else if (passes(error)) {
        lastListening = performance.now();
      } else {
        throw new SessionLost(`the session could not be resumed: ${reason.message}`, true, { cause: error });
      }
    }
    if (performance.now() - begin >= limit) {
      const text = `the session could not be resumed within ${limit / 1000} s: ${reason.message}`;
      throw new SessionLost(text, true, { cause: reason });
    }
    await sleep(pause);
  }
}

/** Whether another attempt may succeed after this error. */
function passes(error: unknown): boolean {
  if (error instanceof AccessDenied) return false;
  return error instanceof SessionAttached || error instanceof ConnectionFailed
    || error instanceof ConnectionLost || error instanceof CallTimeout;
}

/** Replaces lost connections of a session. */
export class Recovery {
  /** How often a lost connection was replaced. */
  count = 0;
  private readonly limit: number;
  private readonly notListening: number;
  private pause = 0;
  private since: number | undefined;
  private reached = 0;

  /**
   * @param inboxes - of the session.
   * @param limit - milliseconds in which a lost connection must be replaced; undefined for the default.
   */
  constructor(
    private readonly connector: Connector,
    private readonly inboxes: ReadonlyMap<string, Inbox>,
    limit: number | undefined,
  ) {
    this.limit = limit ?? RECOVERY_MILLISECONDS;
    this.notListening = limit ?? NOT_LISTENING_MILLISECONDS;
  }

  /** A new connection, with missed events delivered. Throws `SessionLost`. */
  async run(sessionId: string): Promise<Connection> {
    let begin = performance.now();
    let reached = this.progress();
    for (;;) {
      await sleep(this.nextPause());
      const connection = await resume(this.connector, sessionId, this.limit, this.notListening);
      this.count += 1;
      this.since = performance.now();
      this.reached = this.progress();
      try {
        const late = () => new SessionLost("the daemon does not answer after the session was resumed");
        await within(replay(connection, this.inboxes.values()), this.limit, late);
      } catch (error) {
        connection.cut();
        if (!(error instanceof ConnectionLost) || error instanceof SessionLost) throw error;
      }
      if (!connection.lost) return connection;
      if (connection.lost instanceof ProtocolFault) throw connection.lost;
      if (this.progress() !== reached) {
        begin = performance.now();
        reached = this.progress();
      } else if (performance.now() - begin >= this.limit) {
        throw new SessionLost(`each connection of ${this.limit / 1000} s was lost before it brought any events`);
      }
    }
  }

  /** The pause before the next attempt: none if the connection lasted, or has brought events. */
  private nextPause(): number {
    const lasted = this.since === undefined || performance.now() - this.since >= STEADY_MILLISECONDS;
    this.pause = lasted || this.progress() !== this.reached
      ? 0
      : Math.min(2 * this.pause || FIRST_PAUSE_MILLISECONDS, LONGEST_PAUSE_MILLISECONDS);
    return this.pause;
  }

  /** A number that grows with each delivered event. */
  private progress(): number {
    let sum = 0;
    for (const inbox of this.inboxes.values()) sum += inbox.lastSeq;
    return sum;
  }
}

/**
 * Fill an inbox with all events since its last one, and release it.
 *
 * Throws `ConnectionLost`, after which the inbox stays held; `CallFailed`: there is no such process.
 */
export async function readMissing(connection: Connection, inbox: Inbox): Promise<void> {
  if (inbox.sessionId !== undefined) {
    const params = { ...inbox.reference, afterSeq: inbox.lastSeq };
    inbox.updateState((await connection.request("process/subscribe", params)) as ProcessState);
  }
  // A subscription sends the events by itself.
  while (inbox.sessionId === undefined && !inbox.closed) {
    const params = { ...inbox.reference, afterSeq: inbox.lastSeq, maxBytes: null, waitMs: 0 };
    const page = (await connection.request("process/read", params)) as ProcessReadResult;
    inbox.fill(page);
    // A page ends before the chunk that would make it too large.
    const bytes = page.chunks.reduce((sum, { chunk }) => sum + (chunk.length / 4) * 3, 0);
    if (bytes + MAX_CHUNK_BYTES <= MAX_PAGE_BYTES) break;
  }
  inbox.release();
}

/**
 * After a resume: fill all inboxes with missed events, and release them. An inbox whose process is gone fails alone.
 *
 * Throws `ConnectionLost`, after which inboxes stay held, with the events that were read.
 */
async function replay(connection: Connection, inboxes: Iterable<Inbox>): Promise<void> {
  await Promise.all([...inboxes].filter(({ started }) => started).map(async (inbox) => {
    inbox.hold(); // also if an earlier attempt released it
    try {
      await readMissing(connection, inbox);
    } catch (error) {
      if (!(error instanceof CallFailed)) throw error;
      const text = `process ${inbox.processId} did not outlast the lost connection: ${error.message}`;
      inbox.fail(new NoSuchProcess(text, { cause: error }));
      inbox.release();
    }
  }));
}

