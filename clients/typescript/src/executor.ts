/** The client: a connection to an executor that survives its connections. */

import { concat, fromBase64, newId, pathUri, toBase64, toBytes, toText } from "./bytes.js";
import { ExecServerError } from "./errors.js";
import { Inbox } from "./inbox.js";
import type { Exit, ProcessEventName } from "./inbox.js";
import { Process } from "./process.js";
import type { Target } from "./recovery.js";
import { Session } from "./session.js";
import type { CallOptions } from "./session.js";
import { unlessAborted } from "./waiting.js";
import { Watch } from "./watch.js";
import type { WatchOptions } from "./watch.js";
import type {
  EnvironmentInfo, EnvPolicy, Events, FsReadFileResult, InitializeResult, Methods, ResourceLimits, NetworkPolicyRequestParams,
  NetworkPolicyRequestResult, ProcessStartParams, SandboxContext, TerminalSize,
} from "./wire.js";

/** Output that waits in the client, by default. */
const BUFFER_BYTES = 64 << 20;

const CALL_MILLISECONDS = 60_000;

/** The variables of the daemon, as they are. */
const INHERIT_ALL: EnvPolicy = { inherit: "all", ignoreDefaultExcludes: true, exclude: [], set: {}, includeOnly: [] };

/** How to connect, on any platform. */
export interface ExecutorOptions {
  /** The name of the client in the daemon's log. */
  clientName?: string;
  /** The session of another client to resume; by default a new session is opened. */
  sessionId?: string;
  /** Milliseconds for the response to a call, recovery included; 60,000 by default. */
  callTimeout?: number;
  /** Milliseconds in which a lost connection must be replaced; 45,000 by default, and 2,000 while no server listens. */
  recoveryTimeout?: number;
  /** Ends `connect`, with its reason as the error; later it does nothing. */
  signal?: AbortSignal;
  /** Answers whether a process may reach a host, if its start asked for that (`networkProxy`). */
  onNetworkRequest?: (request: NetworkPolicyRequestParams) => NetworkPolicyRequestResult | Promise<NetworkPolicyRequestResult>;
}

/** How to start a process. */
export interface StartOptions {
  /** The working directory, absolute; by default that of the daemon. */
  cwd?: string;
  /** Variables that are added to those of `envPolicy`. */
  env?: Record<string, string>;
  /** Which of the daemon's variables the process gets; all by default, none with null. */
  envPolicy?: EnvPolicy | null;
  /** Keep the standard input open for `Process.write`. */
  stdin?: boolean;
  /** Give the process a terminal. */
  tty?: boolean;
  /** Of the terminal; 24 × 80 by default. */
  size?: TerminalSize;
  /** Milliseconds until the process is killed. */
  timeout?: number;
  /** Milliseconds without output or input until the process is killed. */
  idleTimeout?: number;
  /** What the process may access. */
  sandbox?: SandboxContext;
  /** What the process and its descendants may use together. */
  limits?: ResourceLimits;
  /** Its name in the session; by default a new one. With a name a start is not sent again after a lost connection. */
  id?: string;
  /** Bytes of output that may wait in this client; beyond it the oldest become a `Gap`. 64 MiB by default. */
  bufferBytes?: number;
  /** Further parameters of `process/start`. */
  params?: Partial<ProcessStartParams>;
}

/** What a command has written, and how it ended. */
export interface RunResult extends Exit {
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  /** Both as text in UTF-8; invalid bytes become U+FFFD. */
  readonly stdoutText: string;
  readonly stderrText: string;
  /** Whether output is missing: more of it was produced than was kept while it could not be delivered. */
  readonly incomplete: boolean;
}

/** Events other than those of processes, which `Process` has. */
export type EventName = Exclude<keyof Events, ProcessEventName>;

type Listener = (params: never) => void;

/** A connection to an executor. Get one from `connect`. */
export class Executor {
  private readonly listeners = new Map<string, Set<Listener>>();
  private initialized!: InitializeResult;
  private readonly session: Session;

  private constructor(target: Target, options: ExecutorOptions) {
    this.session = new Session(target, {
      clientName: options.clientName ?? "execclient-typescript",
      callMilliseconds: options.callTimeout ?? CALL_MILLISECONDS,
      recoveryMilliseconds: options.recoveryTimeout,
      sessionId: options.sessionId,
      extensions: true,
      onEvent: (method, params) => {
        for (const listener of this.listeners.get(method) ?? []) listener(params as never);
      },
      onRequest: (method, params) => {
        if (method === "network/policyRequest" && options.onNetworkRequest) {
          return options.onNetworkRequest(params as NetworkPolicyRequestParams);
        }
        throw new ExecServerError(`this client does not answer ${method}`);
      },
    });
  }

  /** @internal */
  static async open(target: Target, options: ExecutorOptions): Promise<Executor> {
    const executor = new Executor(target, options);
    // A transport that is not open yet ends itself after a while.
    executor.initialized = await unlessAborted(executor.session.open(options.signal), options.signal);
    return executor;
  }

  /** The session: `sessionId` of a later `connect`, which resumes it. */
  get sessionId(): string {
    return this.session.id;
  }

  /** The executor's host. */
  get environment(): EnvironmentInfo {
    return this.initialized.environmentInfo;
  }

  /** What the server serves beyond Codex's protocol (`docs/protocol.md`, X10). */
  get capabilities(): ReadonlySet<string> {
    return this.session.capabilities;
  }

  /** How often a lost connection was replaced. */
  get recoveries(): number {
    return this.session.recoveries;
  }

  /**
   * Send any request of the wire, and return its result.
   *
   * Throws `CallFailed` and its classes for an error response, `CallTimeout`, `SessionLost`, `ExecutorClosed`,
   * `RequestTooLarge`, and `OutcomeUnknown` if the connection was lost and the request must not be sent twice.
   */
  call<Method extends keyof Methods>(
    method: Method, params: Methods[Method]["params"], options?: CallOptions,
  ): Promise<Methods[Method]["result"]> {
    return this.session.call(method, params, options) as Promise<Methods[Method]["result"]>;
  }

  /**
   * Call a function with each event of a kind. Events of the time without a connection are missing.
   *
   * @returns a function that ends this.
   */
  on<Name extends EventName>(event: Name, listener: (params: Events[Name]) => void): () => void {
    const listeners = this.listeners.get(event) ?? new Set();
    this.listeners.set(event, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  /**
   * Start a process, and return while it runs.
   *
   * Throws `SystemFailure` if it could not be started, `Refused` if the `id` is taken, and `OutcomeUnknown` if the
   * connection was lost and there is an `id`; then the process is killed if it has started.
   */
  async start(argv: readonly string[], options: StartOptions = {}): Promise<Process> {
    const id = options.id ?? newId();
    const inbox = new Inbox(id, undefined, options.bufferBytes ?? BUFFER_BYTES, 0);
    const isNew = options.id === undefined;
    const params: ProcessStartParams = {
      processId: id,
      argv: [...argv],
      cwd: options.cwd === undefined ? this.environment.cwd : pathUri(options.cwd),
      env: options.env ?? {},
      envPolicy: options.envPolicy === undefined ? INHERIT_ALL : options.envPolicy,
      tty: options.tty ?? false,
      pipeStdin: options.stdin ?? false,
      ...(options.size && { size: options.size }),
      ...(options.timeout !== undefined && { timeoutMs: options.timeout }),
      ...(options.idleTimeout !== undefined && { idleTimeoutMs: options.idleTimeout }),
      ...(options.sandbox && { sandbox: options.sandbox }),
      ...(options.limits && { limits: options.limits }),
      ...(isNew && { ifExists: "attach" as const }),
      ...options.params,
    };
    const repeatable = params.ifExists === "attach";
    const result = await this.session.start(inbox, "process/start", params, repeatable);
    return new Process(this.session, inbox, result.pid);
  }

  /**
   * Run a command to its end. Throws as `start`, and as the iteration of a `Process`.
   *
   * @param options.input - written to the standard input.
   * @param options.signal - kills the process, with its reason as the error.
   */
  async run(
    argv: readonly string[], options: StartOptions & { input?: string | Uint8Array; signal?: AbortSignal } = {},
  ): Promise<RunResult> {
    const { input, signal, ...others } = options;
    signal?.throwIfAborted();
    const process = await this.start(argv, input === undefined ? others : { ...others, stdin: true });
    try {
      return await this.collect(process, input, signal);
    } catch (error) {
      if (signal?.aborted) await process.terminate().catch(() => undefined);
      throw error;
    }
  }

  private async collect(
    process: Process, input: string | Uint8Array | undefined, signal: AbortSignal | undefined,
  ): Promise<RunResult> {
    const writing = input === undefined
      ? undefined
      // A process need not read its input, and may exit before its end.
      : process.write(input).then(() => process.closeStdin()).catch(() => undefined);
    const streams = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[], pty: [] as Uint8Array[] };
    let incomplete = false;
    for await (const piece of process.output(signal && { signal })) {
      if (piece.kind === "gap") incomplete = true;
      else streams[piece.stream].push(piece.data);
    }
    // At the end of its output a process still has its input, in theory, and never reads it.
    if (writing) await unlessAborted(writing, signal);
    const stdout = concat([...streams.stdout, ...streams.pty]);
    const stderr = concat(streams.stderr);
    return {
      ...(await process.exited()),
      stdout, stderr, incomplete, stdoutText: toText(stdout), stderrText: toText(stderr),
    };
  }

  /**
   * The process of a name: of this session, or of another one, which needs a Unix socket or a token (L6).
   *
   * @param options.afterSeq - output before and at this number is left out; 0 by default.
   *
   * Throws `Refused` if there is no such process.
   */
  async attach(
    id: string, options: { sessionId?: string; afterSeq?: number; bufferBytes?: number } = {},
  ): Promise<Process> {
    const { sessionId, afterSeq = 0, bufferBytes = BUFFER_BYTES } = options;
    const inbox = new Inbox(id, sessionId === this.sessionId ? undefined : sessionId, bufferBytes, afterSeq);
    await this.session.attach(inbox);
    return new Process(this.session, inbox, undefined);
  }

  /**
   * Connect to a port on which a process of the session listens. The `stdout` of the result is what the listener
   * sends, and `write` sends to the listener.
   */
  async openPort(port: number, address?: string): Promise<Process> {
    this.session.require("port/open");
    const inbox = new Inbox(newId(), undefined, Infinity, 0);
    const params = { processId: inbox.processId, port, ...(address !== undefined && { address }) };
    await this.session.start(inbox, "port/open", params, true);
    return new Process(this.session, inbox, undefined);
  }

  /**
   * Watch the changes below an absolute path, from the moment when the promise resolves.
   *
   * Throws `CallFailed`: there is no such path, or the daemon has too many watches.
   */
  async watch(path: string, options: WatchOptions = {}): Promise<Watch> {
    this.session.require("fs/watch");
    const watch = new Watch(this.session, path, options);
    await watch.open();
    return watch;
  }

  /** The content of a file of at most 512 MiB, given by its absolute path. */
  async readFile(path: string): Promise<Uint8Array> {
    const result: FsReadFileResult = await this.call("fs/readFile", { path: pathUri(path) });
    return fromBase64(result.dataBase64);
  }

  /** Write a file, given by its absolute path. Throws `OutcomeUnknown` as `call`. */
  async writeFile(path: string, data: string | Uint8Array): Promise<void> {
    await this.call("fs/writeFile", { path: pathUri(path), dataBase64: toBase64(toBytes(data)) });
  }

  /** Cut the connection, as a fault would: for tests of what is built on this. */
  cut(): void {
    this.session.cut();
  }

  /**
   * End the session and the connection: all its processes are killed. A second call does nothing.
   *
   * @param options.keep - leave the session to the daemon: its processes run on, until the session was without a
   *   connection for its time (`session/setTtl`; 80 s by default).
   */
  close(options: { keep?: boolean } = {}): Promise<void> {
    return this.session.close(options.keep ?? false);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
