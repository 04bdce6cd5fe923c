/**
 * A watch of files at the executor: each change once and in order, also over lost connections.
 *
 *     fs/watch ──> fs/changed … ──connection lost, or too many wait──> fs/watchRead ──> fs/changed …
 *                                      │ the server was replaced
 *                                      └──> fs/watch anew, and a gap for the root
 *
 * 1. The numbers of changes are dense. An event that does not follow the last one is dropped, and read later.
 * 2. Few changes wait here. While they do, further events are dropped; the daemon keeps them, up to a limit of its
 *    own, beyond which there is a gap.
 *
 * `docs/protocol.md`, "Watches".
 */

import { newId, pathUri, uriPath } from "./bytes.js";
import { Refused } from "./errors.js";
import type { Session } from "./session.js";
import { unlessAborted } from "./waiting.js";
import type { Change as WireChange, FsChangedEvent, FsWatchParams, FsWatchReadResult, FsWatchResult } from "./wire.js";

/** Changes that wait for the caller, and those that one request reads. */
const MAX_WAITING = 4096;

/** For `fs/watch`, which looks at every directory before it answers. */
const BEGIN_MILLISECONDS = 600_000;

/** What changed; `path` and `from` are paths, not URIs. */
export type Change = WireChange;

/** What to watch. */
export type WatchOptions = Pick<FsWatchParams, "recursive" | "ignoreRules" | "excludeDirs" | "sandbox">;

/** The changes below a path. Get one from `Executor.watch`, and end it by `close`. */
export class Watch implements AsyncIterable<Change>, AsyncDisposable {
  private readonly params: FsWatchParams;
  private readonly waiting: Change[] = [];
  private state: Pick<FsChangedEvent, "ended" | "message"> = {};
  private begun: FsWatchResult | undefined;
  private lastSeq = 0;
  /** Whether the daemon is known to have the watch. */
  private active = false;
  private closed = false;
  /** Whether the daemon may have changes that it does not send, or did not. */
  private behind = false;
  private reading: Promise<void> | undefined;
  private listeners: Array<() => void> = [];

  /** @internal */
  constructor(private readonly session: Session, /** The root, absolute. */ readonly path: string, options: WatchOptions) {
    this.params = { ...options, path: pathUri(path), watchId: newId(), ifExists: "attach" };
  }

  /** @internal */
  async open(): Promise<void> {
    this.session.watches.set(this.params.watchId, (event) => this.receive(event));
    try {
      await this.begin();
    } catch (error) {
      void this.close();
      throw error;
    }
  }

  /**
   * How the daemon notices changes: `polling`, on network mounts and FUSE, lists the tree every two seconds, and does not
   * notice what lasts shorter.
   */
  get mode(): FsWatchResult["mode"] {
    return this.begun!.mode;
  }

  /** Why the watch has ended; undefined while it is active. */
  get ended(): FsChangedEvent["ended"] {
    return this.state.ended;
  }

  /** For people: why it has ended, and the way out. */
  get message(): string | undefined {
    return this.state.message;
  }

  /**
   * The changes until the watch ends, from where an earlier iteration ended. The end of an iteration does not end the watch.
   *
   * @param options.signal - ends a wait for a change, with its reason as the error. No change is lost.
   *
   * Throws `SessionLost`, `ExecutorClosed`; `NotFound` if the server was replaced, and the path does not exist any more;
   * `CallTimeout`, after which another iteration continues.
   */
  async *changes(options: { signal?: AbortSignal } = {}): AsyncGenerator<Change, void, void> {
    for (;;) {
      const change = this.waiting.shift();
      if (change) yield change;
      else if (this.closed || this.ended !== undefined) return;
      else if (this.behind || this.reading) await unlessAborted(this.read(), options.signal);
      else await unlessAborted(new Promise<void>((resolve) => this.listeners.push(resolve)), options.signal);
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<Change, void, void> {
    return this.changes();
  }

  /** End the watch, and its iterations. May be called again. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    this.session.watches.delete(this.params.watchId);
    this.wake();
    // The daemon ends it with the session if it cannot be told.
    await this.session.call("fs/unwatch", { watchId: this.params.watchId }).catch(() => undefined);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async begin(): Promise<void> {
    const timeout = Math.max(BEGIN_MILLISECONDS, this.session.callMilliseconds);
    this.begun = (await this.session.call("fs/watch", this.params, { timeout, repeatable: true })) as FsWatchResult;
    this.lastSeq = this.begun.nextSeq - 1;
    this.active = true;
  }

  /** Read what the daemon has after the last change, once for all iterations that wait. */
  private read(): Promise<void> {
    this.reading ??= this.readPage().finally(() => {
      this.reading = undefined;
    });
    return this.reading;
  }

  private async readPage(): Promise<void> {
    this.behind = false; // what arrives from here on says so again
    try {
      if (!this.active) {
        await this.begin();
        this.behind = true;
        this.waiting.push({ kind: "gap", path: this.path, isDirectory: true });
        return;
      }
      const params = { watchId: this.params.watchId, afterSeq: this.lastSeq, maxChanges: MAX_WAITING };
      const page = (await this.session.call("fs/watchRead", params)) as FsWatchReadResult;
      this.take(page);
      // A full page is followed by another one, and an empty one tells that this was the last.
      if (page.changes.length > 0 && page.ended === null) this.behind = true;
    } catch (error) {
      this.behind = true;
      if (!(error instanceof Refused && this.active && error.wireName === "unknown_watch")) throw error;
      this.active = false;
    }
  }

  /** Process an event of the watch; undefined: some may have been lost. */
  private receive(event: FsChangedEvent | undefined): void {
    const takes = this.active && this.waiting.length < MAX_WAITING;
    if (event && takes && event.firstSeq <= this.lastSeq + 1) this.take(event);
    else this.behind = true;
    this.wake();
  }

  /** Keep the changes of an event or a page that are not here yet. */
  private take({ firstSeq, changes, ended, message }: FsChangedEvent | FsWatchReadResult): void {
    for (const change of changes.slice(Math.max(0, this.lastSeq + 1 - firstSeq))) {
      const { from } = change;
      this.waiting.push({ ...change, path: uriPath(change.path), ...(from !== undefined && { from: uriPath(from) }) });
    }
    this.lastSeq = Math.max(this.lastSeq, firstSeq + changes.length - 1);
    if (ended) this.state = { ended, ...(message !== undefined && { message }) };
  }

  private wake(): void {
    const listeners = this.listeners;
    this.listeners = [];
    for (const each of listeners) each();
  }
}
