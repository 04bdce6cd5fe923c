/** One connection: JSON-RPC 2.0 over a channel. `docs/protocol.md`, "Standard JSON-RPC". */

import { createMessageConnection, ErrorCodes, ParameterStructures, ResponseError } from "vscode-jsonrpc";
import type { DataCallback, Disposable, Message, MessageConnection, MessageReader, MessageWriter } from "vscode-jsonrpc";

import {
  CallFailed, ConnectionLost, ExecServerError, ExecutorDraining, InvalidParams, LineTooLong, NotFound, ProtocolFault, Refused,
  RequestTooLarge, SandboxRequired, SessionAttached, SystemFailure, UnknownMethod,
} from "./errors.js";
import type { ErrorData } from "./wire.js";

/** A message from a client (`docs/protocol.md`, "Limits"). */
export const MAX_MESSAGE_BYTES = 64 << 20;

/** A request with fewer characters in its strings is not measured: it cannot exceed the limit. */
const MEASURED_CHARACTERS = MAX_MESSAGE_BYTES / 8;

/** After the loss of a connection, for the messages that have arrived before. */
const LAST_MILLISECONDS = 1000;

/** A message that no server sends: it follows the last one of a connection. */
const END: Message & { method: string } = { jsonrpc: "2.0", method: "$/execclient/end" };

/** How long the end of a connection waits for the server's own end. */
const CLOSE_MILLISECONDS = 5000;

/** A transport after its handshake. */
export interface Channel {
  readonly reader: MessageReader;
  readonly writer: MessageWriter;
  /** End it in an orderly way; resolves when it has ended. */
  close(): Promise<void>;
  /** End it at once. */
  cut(): void;
}

/** What a connection reports. */
export interface ConnectionHandlers {
  /** An event of the server. */
  onEvent(method: string, params: unknown): void;
  /** A request of the server; its result. */
  onRequest(method: string, params: unknown): unknown;
  /** The connection has ended, and not by `close`. */
  onLost(connection: Connection, reason: ExecServerError): void;
}

/** Errors of vscode-jsonrpc itself: the request has no response. */
const WITHOUT_RESPONSE = new Set<number>([
  ErrorCodes.PendingResponseRejected, ErrorCodes.ConnectionInactive,
  ErrorCodes.MessageWriteError, ErrorCodes.MessageReadError,
]);

const BY_WIRE_CODE = new Map<number, typeof CallFailed>([
  [-32600, Refused],
  [-32601, UnknownMethod],
  [-32602, InvalidParams],
  [-32603, SystemFailure],
  [-32004, NotFound],
  [-32010, SessionAttached],
  [-32011, ExecutorDraining],
]);

const BY_WIRE_NAME = new Map<string, typeof CallFailed>([
  ["line_too_long", LineTooLong],
  ["sandbox_required", SandboxRequired],
]);

/**
 * Adds `END` to the messages of a connection. vscode-jsonrpc reports the end of a connection at once, and the messages
 * before it later: a response with which a server ends would be lost.
 */
function withEnd(reader: MessageReader): MessageReader {
  return {
    onError: reader.onError,
    onClose: reader.onClose,
    onPartialMessage: reader.onPartialMessage,
    listen(callback: DataCallback): Disposable {
      reader.onClose(() => callback(END));
      return reader.listen(callback);
    },
    dispose: () => reader.dispose(),
  };
}

/** A connection to a server. */
export class Connection {
  /** Why it has ended; undefined while it is open. */
  lost: ExecServerError | undefined;
  private readonly rpc: MessageConnection;
  private closing = false;
  private lastMessages: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly channel: Channel, private readonly handlers: ConnectionHandlers) {
    this.rpc = createMessageConnection(withEnd(channel.reader), channel.writer);
    this.rpc.onNotification((method, params) => {
      if (method === END.method) this.dispose();
      else if (!this.lost) handlers.onEvent(method, params);
    });
    this.rpc.onRequest((method, params) => handlers.onRequest(method, params));
    this.rpc.onClose(() => {
      this.end(new ConnectionLost("the server closed the connection"));
      this.lastMessages = setTimeout(() => this.dispose(), LAST_MILLISECONDS);
    });
    this.rpc.onError(([error, message]) => {
      // With a message it is an error of writing, after which the transport reports its end.
      const broken = message !== undefined || "syscall" in error;
      this.fail(broken ? new ConnectionLost(error.message) : new ProtocolFault(error.message));
    });
    this.rpc.listen();
  }

  /**
   * Send a request, and return its result.
   *
   * Throws `CallFailed`, `ConnectionLost`, `RequestTooLarge`.
   */
  async request(method: string, params: unknown): Promise<unknown> {
    if (this.lost || this.closing) throw new ConnectionLost(this.reason ?? "the connection was closed", false);
    if (characters(params) > MEASURED_CHARACTERS) measure(method, params);
    try {
      // An argument that is not an object would be sent as an array.
      const hasParams = params !== undefined && params !== null;
      return await (hasParams ? this.rpc.sendRequest(method, ParameterStructures.byName, params) : this.rpc.sendRequest(method));
    } catch (error) {
      if (!(error instanceof ResponseError)) throw error;
      if (WITHOUT_RESPONSE.has(error.code)) throw new ConnectionLost(this.reason ?? error.message);
      throw callFailed(method, error.code, error.message, error.data as ErrorData | undefined);
    }
  }

  /** Send a notification. A lost connection drops it. */
  notify(method: string): void {
    if (!this.lost) this.rpc.sendNotification(method).catch(() => undefined);
  }

  /** End the connection in an orderly way. */
  async close(): Promise<void> {
    this.closing = true;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, CLOSE_MILLISECONDS);
    });
    await Promise.race([this.channel.close(), late]);
    clearTimeout(timer);
    this.fail(new ConnectionLost("the connection was closed"));
  }

  /** Cut the connection, as a fault would. */
  cut(): void {
    this.fail(new ConnectionLost("the connection was cut by the client"));
  }

  private get reason(): string | undefined {
    return this.lost?.message;
  }

  private fail(reason: ExecServerError): void {
    this.end(reason);
    this.dispose();
    this.channel.cut();
  }

  private end(reason: ExecServerError): void {
    if (this.lost) return;
    this.lost = reason;
    if (!this.closing) this.handlers.onLost(this, reason);
  }

  /** Reject what is unanswered. */
  private dispose(): void {
    clearTimeout(this.lastMessages);
    this.rpc.dispose();
  }
}

/** The characters of all strings in a value. */
function characters(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 0;
  let sum = 0;
  for (const member of Object.values(value)) sum += characters(member);
  return sum;
}

/** Throw `RequestTooLarge` for a request that is too large for one message. */
function measure(method: string, params: unknown): void {
  const size = new TextEncoder().encode(JSON.stringify(params)).length + method.length + 100;
  if (size > MAX_MESSAGE_BYTES) {
    throw new RequestTooLarge(
      `${method}: the request has ${size} bytes, of which a message has at most ${MAX_MESSAGE_BYTES}; ` +
        "write a large file in blocks, by fs/open and fs/writeBlock",
    );
  }
}

/** The error for an error response. */
function callFailed(method: string, wireCode: number, message: string, data?: ErrorData): CallFailed {
  const kind = BY_WIRE_NAME.get(data?.code ?? "") ?? BY_WIRE_CODE.get(wireCode) ?? CallFailed;
  return new kind(method, wireCode, message, data);
}
