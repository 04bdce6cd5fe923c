/** A process at the executor. */

import { newId, toBase64, toBytes } from "./bytes.js";
import { NoSuchProcess, StdinUnavailable, SystemFailure } from "./errors.js";
import type { Exit, Inbox, Piece } from "./inbox.js";
import type { Session } from "./session.js";
import { unlessAborted } from "./waiting.js";
import type {
  ProcessCloseStdinResult, ProcessResizeResult, ProcessSignalParams, ProcessTerminateParams, ProcessTerminateResult,
  ProcessWriteResult,
} from "./wire.js";

/** Input is sent in pieces of this size: far below the limit of a message, far above that of a pipe. */
const WRITE_BYTES = 1 << 20;

/**
 * A process. Get one from `Executor.start` or `Executor.attach`.
 *
 *     for await (const piece of process) {
 *       if (piece.kind === "gap") console.warn(`${piece.lostBytes} bytes were lost`);
 *       else stdout.write(piece.data);
 *     }
 *     const { exitCode } = await process.exited();
 *
 * The iteration continues over lost connections, and ends when the process and its output have ended. It throws
 * `SessionLost` if the session cannot be resumed, `ExecutorClosed` after `Executor.close`, and `NoSuchProcess` if the
 * server has forgotten the process.
 */
export class Process implements AsyncIterable<Piece> {
  private readonly writeIds: string;
  private writes = 0;
  private turn: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(
    private readonly session: Session,
    private readonly inbox: Inbox,
    /** Of the leader, at the executor; undefined for an attached process. */
    readonly pid: number | undefined,
  ) {
    this.writeIds = newId();
  }

  /** Its name in its session. */
  get id(): string {
    return this.inbox.processId;
  }

  /** The number of the newest event that has arrived: `afterSeq` of a later `Executor.attach`. */
  get lastSeq(): number {
    return this.inbox.lastSeq;
  }

  /** How it ended; undefined while it runs. */
  get exit(): Exit | undefined {
    return this.inbox.exit;
  }

  /**
   * The output, from where an earlier iteration ended. Each piece is given to one iteration.
   *
   * @param options.signal - ends a wait for output, with its reason as the error. No output is lost.
   */
  async *output(options: { signal?: AbortSignal } = {}): AsyncGenerator<Piece, void, void> {
    for (let piece; (piece = await this.inbox.take(options.signal)); ) yield piece;
  }

  [Symbol.asyncIterator](): AsyncGenerator<Piece, void, void> {
    return this.output();
  }

  /**
   * Wait for the end of the process; its output need not have ended. Throws as the iteration.
   *
   * @param options.signal - ends the wait, with its reason as the error.
   */
  exited(options: { signal?: AbortSignal } = {}): Promise<Exit> {
    return this.inbox.untilExited(options.signal);
  }

  /**
   * Write to the standard input, or type at the terminal. Calls are carried out in their order, each once, also over
   * lost connections. The promise waits while the executor holds 64 MiB that the process has not read.
   *
   * @param options.signal - ends the wait, with its reason as the error. A part may be written, also later.
   *
   * Throws `StdinUnavailable`, `NoSuchProcess`, and `LineTooLong` for a line that a terminal would cut.
   */
  write(data: string | Uint8Array, options: { signal?: AbortSignal } = {}): Promise<void> {
    const bytes = toBytes(data);
    const done = this.inTurn(async () => {
      for (let start = 0; start < bytes.length; start += WRITE_BYTES) {
        options.signal?.throwIfAborted();
        await this.writePiece(bytes.subarray(start, start + WRITE_BYTES), options);
      }
    });
    return unlessAborted(done, options.signal);
  }

  private async writePiece(piece: Uint8Array, options: { signal?: AbortSignal }): Promise<void> {
    const params = {
      ...this.inbox.reference,
      chunk: toBase64(piece),
      writeId: `${this.writeIds}-${++this.writes}`,
      wholeLines: true,
    };
    try {
      const result = await this.session.call("process/write", params, { ...options, timeout: Infinity });
      this.check((result as ProcessWriteResult).status);
    } catch (error) {
      if (!(error instanceof SystemFailure)) throw error;
      throw new StdinUnavailable(`process ${this.id} no longer takes input: ${error.wireMessage}`, { cause: error });
    }
  }

  /** Close the standard input after all earlier writes. A terminal has none: write `"\x04"` there. */
  closeStdin(): Promise<void> {
    return this.inTurn(async () => {
      const result = await this.session.call("process/closeStdin", this.inbox.reference);
      this.check((result as ProcessCloseStdinResult).status);
    });
  }

  /** Set the size of the terminal. */
  async resize(rows: number, cols: number): Promise<boolean> {
    const result = await this.session.call("process/resize", { ...this.inbox.reference, size: { rows, cols } });
    return (result as ProcessResizeResult).running;
  }

  /**
   * Send a signal.
   *
   * @param signal - a name such as `SIGTERM`.
   * @param scope - the process group, the leader, or with `tree` all descendants.
   */
  async signal(signal: string, scope: ProcessSignalParams["scope"] = "group"): Promise<void> {
    await this.session.call("process/signal", { ...this.inbox.reference, signal, scope });
  }

  /**
   * Kill the process, by default with all its descendants.
   *
   * @returns whether it was running.
   */
  async terminate(scope: ProcessTerminateParams["scope"] = "tree"): Promise<boolean> {
    const result = await this.session.call("process/terminate", { ...this.inbox.reference, scope });
    return (result as ProcessTerminateResult).running;
  }

  /** Receive no more of its output. The process runs on. */
  detach(): Promise<void> {
    return this.session.detach(this.inbox);
  }

  private inTurn(task: () => Promise<void>): Promise<void> {
    const done = this.turn.then(task);
    this.turn = done.catch(() => undefined);
    return done;
  }

  private check(status: string): void {
    if (status === "unknownProcess") throw new NoSuchProcess(`unknown process id ${this.id}`);
    if (status !== "accepted") {
      throw new StdinUnavailable(
        `process ${this.id} has no standard input, or it was closed: start it with stdin or tty (${status})`,
      );
    }
  }
}
