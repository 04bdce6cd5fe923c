/**
 * A session with a server, over any number of connections.
 *
 *     open ──> connected ──connection lost──> recovering ──not resumed──> lost
 *                  ^                              │
 *                  └────────── resumed ───────────┘            any ── close ──> closed
 *
 * Calls made during a recovery wait. Of the calls under way, those in `IDEMPOTENT` are sent again; the others
 * throw `OutcomeUnknown`.
 */

import type { Connection } from "./connection.js";
import {
  CallTimeout, ConnectionLost, ExecServerError, ExecutorClosed, OutcomeUnknown, ProtocolFault, SessionLost, Unsupported,
} from "./errors.js";
import type { Inbox, ProcessEventName } from "./inbox.js";
import { Connector, join, readMissing, Recovery } from "./recovery.js";
import type { Target } from "./recovery.js";
import { unlessAborted, within } from "./waiting.js";
import type { Events, FsChangedEvent, InitializeResult, Methods } from "./wire.js";

const IDEMPOTENT: ReadonlySet<string> = new Set<keyof Methods>([
  "capabilities/discoverV2", "capabilityRoots/discoverV1", "environment/info", "environment/status",
  "environmentConfig/read", "fs/canonicalize", "fs/digest", "fs/endSearch", "fs/getFiles", "fs/getMetadata",
  "fs/glob", "fs/putFiles", "fs/readDirectory", "fs/readFile", "fs/search", "fs/setMetadata", "fs/unwatch",
  "fs/walk", "fs/watchRead", "port/list", "port/open", "process/closeStdin", "process/list", "process/listForgotten",
  "process/read", "process/resize", "process/terminate", "process/unsubscribe",
  "process/write", // the server remembers the write id
  "rpc.discover", "session/end", // after the first the session cannot be resumed
  "session/setTtl",
]);

/** How long the end of a client waits for the server. */
const END_MILLISECONDS = 5000;

export interface SessionOptions {
  clientName: string;
  /** For the response to a call, recovery included. */
  callMilliseconds: number;
  recoveryMilliseconds: number | undefined;
  sessionId: string | undefined;
  /** Whether to ask for extension members (X1). */
  extensions: boolean;
  onEvent: (method: string, params: unknown) => void;
  onRequest: (method: string, params: unknown) => unknown;
}

/** How to make a call. */
export interface CallOptions {
  /** Milliseconds for the response, the recovery of a lost connection included. */
  timeout?: number;
  /** Whether the request may be sent again after a lost connection. By default that depends on the method. */
  repeatable?: boolean;
  /**
   * Ends the wait for the response, with its reason as the error. A request that was sent may still be executed.
   */
  signal?: AbortSignal;
}

/** Calls, the inboxes of the session's processes, and the recovery of a lost connection. */
export class Session {
  id = "";
  /** The extensions that the server serves (D3, X10). */
  capabilities: ReadonlySet<string> = new Set();
  /** Gets the events of a watch, by its id; undefined when events may have been lost. */
  readonly watches = new Map<string, (event: FsChangedEvent | undefined) => void>();
  private readonly inboxes = new Map<string, Inbox>();
  private readonly connector: Connector;
  private readonly recovery: Recovery;
  private connection: Connection | undefined;
  private failure: ExecServerError | undefined;
  private closed = false;
  private ending = false;
  private settled: Promise<void> = Promise.resolve();

  constructor(target: Target, private readonly options: SessionOptions) {
    this.connector = new Connector(target, options.clientName, options.extensions, {
      onEvent: (method, params) => this.receive(method, params),
      onRequest: options.onRequest,
      onLost: (connection, reason) => this.connectionLost(connection, reason),
    });
    this.recovery = new Recovery(this.connector, this.inboxes, options.recoveryMilliseconds);
  }

  /** How often a lost connection was replaced. */
  get recoveries(): number {
    return this.recovery.count;
  }

  /** Connect, and open a new session or resume the given one. */
  async open(signal?: AbortSignal): Promise<InitializeResult> {
    const [connection, result] = await join(this.connector, this.options.sessionId, signal);
    this.id = result.sessionId;
    this.capabilities = new Set(result.environmentInfo.capabilities.execserver ?? []);
    this.connection = connection;
    if (connection.lost) this.connectionLost(connection, connection.lost);
    return result;
  }

  /**
   * End the session and the connection. A second call does nothing.
   *
   * @param keep - leave the session to the server, which ends it after its time without a connection.
   */
  async close(keep: boolean): Promise<void> {
    if (this.closed) return;
    if (!this.failure && !keep) {
      this.ending = true;
      // The server ends the session by itself if it cannot be told.
      await this.call("session/end", {}, { timeout: END_MILLISECONDS }).catch(() => undefined);
    }
    this.closed = true;
    const connection = this.connection;
    this.connection = undefined;
    this.failAll(new ExecutorClosed("the executor was closed"));
    await connection?.close();
  }

  // Calls

  /** For the response to a call, by default. */
  get callMilliseconds(): number {
    return this.options.callMilliseconds;
  }

  /**
   * Send a request, and return its result.
   *
   * Throws `CallFailed`, `CallTimeout`, `OutcomeUnknown`, `SessionLost`, `ExecutorClosed`, `RequestTooLarge`.
   */
  call(method: string, params: unknown, options: CallOptions = {}): Promise<unknown> {
    return unlessAborted(this.attempt(method, params, options), options.signal);
  }

  private async attempt(method: string, params: unknown, options: CallOptions): Promise<unknown> {
    const timeout = options.timeout ?? this.options.callMilliseconds;
    const end = performance.now() + timeout;
    const repeatable = options.repeatable ?? IDEMPOTENT.has(method);
    for (;;) {
      const late = () => new CallTimeout(method, timeout);
      const connection = await within(this.connected(), end - performance.now(), late);
      options.signal?.throwIfAborted(); // an abandoned call is not sent after a recovery
      try {
        return await within(connection.request(method, params), end - performance.now(), late);
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error;
        if (error.sent && !repeatable) {
          const text = `${method}: ${error.message}; whether it was done is unknown`;
          throw new OutcomeUnknown(text, true, { cause: error });
        }
      }
    }
  }

  /** The connection; waits for a recovery. */
  private async connected(): Promise<Connection> {
    for (;;) {
      if (this.closed) throw new ExecutorClosed("the executor is closed");
      if (this.failure) throw new SessionLost(this.failure.message, false, { cause: this.failure });
      if (this.connection) return this.connection;
      await this.settled;
    }
  }

  /** Throw `Unsupported` if the server does not serve an extension. */
  require(extension: string): void {
    if (!this.capabilities.has(extension)) throw new Unsupported(extension);
  }

  /** Cut the connection, as a fault would. */
  cut(): void {
    this.connection?.cut();
  }

  // Processes

  /**
   * Start a process whose events the inbox gets.
   *
   * @param params - of `process/start`, or `port/open`.
   * @param repeatable - whether a second request finds the process of the first.
   */
  async start<Method extends "process/start" | "port/open">(
    inbox: Inbox, method: Method, params: Methods[Method]["params"], repeatable: boolean,
  ): Promise<Methods[Method]["result"]> {
    this.add(inbox);
    try {
      const result = (await this.call(method, params, { repeatable })) as Methods[Method]["result"];
      inbox.started = true;
      await this.fillHeld(inbox);
      return result;
    } catch (error) {
      this.forget(inbox);
      if (error instanceof OutcomeUnknown || error instanceof CallTimeout) {
        // So that no unknown process runs on.
        this.call("process/terminate", { ...inbox.reference, scope: "tree" }).catch(() => undefined);
      }
      throw error;
    }
  }

  /** Deliver the events of an existing process to an inbox, those after its `lastSeq`. Throws `CallFailed`. */
  async attach(inbox: Inbox): Promise<void> {
    inbox.hold();
    this.add(inbox);
    inbox.started = true;
    try {
      await within(this.fillHeld(inbox), this.options.callMilliseconds, () => (
        new CallTimeout("process/read", this.options.callMilliseconds)
      ));
    } catch (error) {
      this.forget(inbox);
      throw error;
    }
    if (inbox.failure) throw inbox.failure; // the recovery has found no process
  }

  /** Deliver no more events to an inbox. */
  async detach(inbox: Inbox): Promise<void> {
    this.forget(inbox);
    if (inbox.sessionId !== undefined && !inbox.closed) {
      await this.call("process/unsubscribe", inbox.reference).catch(() => undefined);
    }
  }

  /** Read the events that an inbox misses, unless a recovery does. */
  private async fillHeld(inbox: Inbox): Promise<void> {
    for (;;) {
      const connection = await this.connected();
      if (!inbox.isHeld) break;
      try {
        await readMissing(connection, inbox);
        // After a lost connection the recovery holds it again, and fills it.
        if (connection === this.connection) break;
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error;
      }
    }
    if (inbox.closed) this.forget(inbox);
  }

  private add(inbox: Inbox): void {
    const key = keyOf(inbox.sessionId, inbox.processId);
    if (this.inboxes.has(key)) throw new TypeError(`the process ${inbox.processId} is attached already`);
    this.inboxes.set(key, inbox);
  }

  private forget(inbox: Inbox): void {
    const key = keyOf(inbox.sessionId, inbox.processId);
    if (this.inboxes.get(key) === inbox) this.inboxes.delete(key);
  }

  // Events and the loss of a connection

  private receive(method: string, params: unknown): void {
    if (method === "process/output" || method === "process/exited" || method === "process/closed") {
      const event = params as Events[ProcessEventName];
      const inbox = this.inboxes.get(keyOf(event.sessionId, event.processId));
      inbox?.push(method, event);
      if (inbox?.closed) this.forget(inbox);
      return;
    }
    const watch = method === "fs/changed" ? this.watches.get((params as FsChangedEvent).watchId) : undefined;
    if (watch) watch(params as FsChangedEvent);
    else this.options.onEvent(method, params);
  }

  private connectionLost(connection: Connection, reason: ExecServerError): void {
    // Else it is a connection of the recovery, which notices by itself.
    if (connection !== this.connection) return;
    this.connection = undefined;
    if (this.closed) return;
    for (const inbox of this.inboxes.values()) inbox.hold();
    if (reason instanceof ProtocolFault || !this.connector.target.recoverable) this.giveUp(reason);
    else this.settled = this.recover();
  }

  private async recover(): Promise<void> {
    try {
      const connection = await this.recovery.run(this.id);
      if (this.closed) {
        await connection.close();
        return;
      }
      for (const inbox of this.inboxes.values()) if (inbox.closed) this.forget(inbox);
      this.connection = connection;
      for (const watch of this.watches.values()) watch(undefined);
      // It may have been lost before it was known here.
      if (connection.lost) this.connectionLost(connection, connection.lost);
    } catch (error) {
      this.giveUp(error instanceof ExecServerError ? error : new ProtocolFault(String(error), { cause: error }));
    }
  }

  private giveUp(error: ExecServerError): void {
    this.failure = error;
    this.failAll(
      this.closed || this.ending
        ? new ExecutorClosed("the executor was closed")
        : new SessionLost(error.message, true, { cause: error }),
    );
  }

  private failAll(error: ExecServerError): void {
    for (const inbox of this.inboxes.values()) inbox.fail(error);
    for (const watch of this.watches.values()) watch(undefined);
  }
}

function keyOf(sessionId: string | undefined, processId: string): string {
  return JSON.stringify([sessionId ?? null, processId]);
}
