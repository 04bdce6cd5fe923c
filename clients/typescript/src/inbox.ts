/**
 * The events of a process: each delivered once, in the order of their numbers. No I/O.
 *
 * 1. Numbers are dense. An event at or before the cursor is dropped: it was delivered already.
 * 2. While an inbox is held, after a lost connection, nothing is delivered: events wait until a page of
 *    `process/read` has filled the gap before them.
 * 3. Lost output becomes a `Gap` at its place.
 *
 * `docs/protocol.md`, "Output" and "Resuming".
 */

import { fromBase64 } from "./bytes.js";
import type { ExecServerError } from "./errors.js";
import { unlessAborted } from "./waiting.js";
import type { Events, ProcessExitedEvent, ProcessOutputEvent, ProcessReadResult } from "./wire.js";

/** Output of a process. */
export interface Output {
  readonly kind: "output";
  /** The number of its event, counted from 1 for all events of the process. */
  readonly seq: number;
  /** `pty` for everything on a terminal. */
  readonly stream: "stdout" | "stderr" | "pty";
  /** At most 1 MiB, cut anywhere, also within a character. */
  readonly data: Uint8Array;
}

/** Output was lost here; the output after it is complete. */
export interface Gap {
  readonly kind: "gap";
  /** How much was lost; undefined if it is not known. */
  readonly lostBytes: number | undefined;
}

/** An element of the output of a process. */
export type Piece = Output | Gap;

/** How a process ended. */
export interface Exit {
  /** The exit status, or 128 + N for death by signal N. */
  readonly exitCode: number;
  readonly cause: ProcessExitedEvent["cause"];
  /** Whether a sandbox seems to have stopped the command. */
  readonly sandboxDenied: boolean;
  readonly denial: ProcessExitedEvent["denial"];
  readonly endedWithSandbox: ProcessExitedEvent["endedWithSandbox"];
  readonly limit: ProcessExitedEvent["limit"];
  readonly usage: ProcessExitedEvent["usage"];
}

/** The state of a process, in the results of `process/read` and `process/subscribe`. */
export type ProcessState = Pick<ProcessReadResult, "nextSeq" | "exited" | "exitCode" | "closed">
  & Partial<Omit<Exit, "exitCode">>;

export type ProcessEventName = "process/output" | "process/exited" | "process/closed";

type Waiting = { resolve: () => void; reject: (error: ExecServerError) => void };

/** The events of one process until they are taken. */
export class Inbox {
  /** Whether the process is known to exist. */
  started = false;
  exit: Exit | undefined;
  closed = false;
  failure: ExecServerError | undefined;
  private held = false;
  private readonly ahead = new Map<number, { method: ProcessEventName; params: Events[ProcessEventName] }>();
  private readonly pieces: Piece[] = [];
  private taken = 0;
  private size = 0;
  private waiting: Waiting[] = [];

  /**
   * @param processId - the process.
   * @param sessionId - its session; undefined for the client's own.
   * @param limit - bytes of output that may wait; beyond this the oldest become a `Gap`.
   * @param lastSeq - the number of the last delivered event.
   * @param observer - called with each event as it is delivered.
   */
  constructor(
    readonly processId: string,
    readonly sessionId: string | undefined,
    private readonly limit: number,
    public lastSeq: number,
    private readonly observer?: (method: string, params: unknown) => void,
  ) {}

  /** The members of a request that name the process. */
  get reference(): { processId: string; sessionId?: string } {
    return this.sessionId === undefined
      ? { processId: this.processId }
      : { processId: this.processId, sessionId: this.sessionId };
  }

  // Events

  /** Process a notification. */
  push(method: ProcessEventName, params: Events[ProcessEventName]): void {
    if (params.seq <= this.lastSeq) return;
    if (this.held) this.ahead.set(params.seq, { method, params });
    else this.deliver(method, params);
  }

  private deliver(method: ProcessEventName, params: Events[ProcessEventName]): void {
    const lost = "lostBytes" in params ? params.lostBytes : undefined;
    if (lost || params.seq > this.lastSeq + 1) this.add({ kind: "gap", lostBytes: lost });
    this.lastSeq = params.seq;
    if (method === "process/output") {
      this.output(params as ProcessOutputEvent);
    } else if (method === "process/exited") {
      this.exited(params as ProcessExitedEvent);
    } else {
      this.closed = true;
    }
    if (method !== "process/output") this.observer?.(method, params);
    this.wake();
  }

  private output(params: ProcessOutputEvent): void {
    const { seq, stream, chunk } = params;
    // An empty chunk stands for a lost number.
    if (chunk) this.add({ kind: "output", seq, stream, data: fromBase64(chunk) });
    this.observer?.("process/output", params);
  }

  /** Deliver nothing until `fill` and `release`. */
  hold(): void {
    this.held = true;
  }

  get isHeld(): boolean {
    return this.held;
  }

  /** Process the result of a `process/read` for everything after `lastSeq`. */
  fill(page: ProcessReadResult): void {
    // Events that came meanwhile are in the page, too, unless retention has dropped them since.
    for (let next; (next = this.ahead.get(this.lastSeq + 1)); ) this.deliver(next.method, next.params);
    const chunks = page.chunks.filter((chunk) => chunk.seq > this.lastSeq);
    if (page.lostBytes) this.add({ kind: "gap", lostBytes: page.lostBytes });
    // Their numbers may leave out one, that of the exit.
    for (const chunk of chunks) this.output({ ...this.reference, ...chunk });
    this.lastSeq = Math.max(this.lastSeq, page.nextSeq - 1);
    this.updateState(page);
  }

  /** Process the state of the process. */
  updateState(state: ProcessState): void {
    if (state.exited && state.exitCode !== null) this.exited(state as ProcessState & { exitCode: number });
    // Undelivered events, among them the closing, are delivered in order.
    if (state.closed && this.lastSeq >= state.nextSeq - 1) this.closed = true;
    this.wake();
  }

  /** Deliver the events that came while it was held, and later events at once. */
  release(): void {
    this.held = false;
    const seqs = [...this.ahead.keys()].sort((a, b) => a - b);
    for (const seq of seqs) {
      const { method, params } = this.ahead.get(seq)!;
      if (seq > this.lastSeq && !this.closed) this.deliver(method, params);
    }
    this.ahead.clear();
  }

  /** No more events will arrive, because of this error. */
  fail(error: ExecServerError): void {
    this.failure = error;
    const waiting = this.waiting;
    this.waiting = [];
    for (const each of waiting) each.reject(error);
  }

  private exited(event: Partial<Exit> & { exitCode: number }): void {
    this.exit = {
      exitCode: event.exitCode,
      cause: event.cause,
      sandboxDenied: event.sandboxDenied ?? false,
      denial: event.denial,
      endedWithSandbox: event.endedWithSandbox,
      limit: event.limit,
      usage: event.usage,
    };
  }

  // Output

  /** The next piece; undefined at the end of the output. Throws `failure`, and the reason of the signal. */
  async take(signal?: AbortSignal): Promise<Piece | undefined> {
    while (this.taken === this.pieces.length) {
      if (this.closed) return undefined;
      await unlessAborted(this.news(), signal);
    }
    const piece = this.pieces[this.taken++]!;
    if (piece.kind === "output") this.size -= piece.data.length;
    // Elements before `taken` are removed many at a time: `shift` of a long array is slow.
    if (this.taken === this.pieces.length || this.taken > 1024) this.pieces.splice(0, this.taken), (this.taken = 0);
    return piece;
  }

  /** Wait for the end of the process. */
  async untilExited(signal?: AbortSignal): Promise<Exit> {
    while (!this.exit) await unlessAborted(this.news(), signal);
    return this.exit;
  }

  /** Wait until something has changed. Throws `failure`. */
  private news(): Promise<void> {
    if (this.failure) return Promise.reject(this.failure);
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }

  private wake(): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const each of waiting) each.resolve();
  }

  private add(piece: Piece): void {
    this.pieces.push(piece);
    if (piece.kind === "gap") return;
    this.size += piece.data.length;
    if (this.size > this.limit) this.dropOldest();
  }

  private dropOldest(): void {
    let dropped: number | undefined = 0;
    while (this.size > this.limit || this.pieces[this.taken]?.kind === "gap") {
      const piece: Piece = this.pieces[this.taken++]!;
      const amount: number | undefined = piece.kind === "gap" ? piece.lostBytes : piece.data.length;
      if (piece.kind === "output") this.size -= piece.data.length;
      dropped = dropped === undefined || amount === undefined ? undefined : dropped + amount;
    }
    this.pieces.splice(0, this.taken, { kind: "gap", lostBytes: dropped });
    this.taken = 0;
  }
}
