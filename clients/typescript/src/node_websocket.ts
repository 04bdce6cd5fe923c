/** A WebSocket client for Node 20, which has none: RFC 6455 over `node:http`. */

import { createHash, randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import type { Socket } from "node:net";

import type { OpenWebSocket } from "./channels.js";
import { AccessDenied, ConnectionFailed, DaemonNotRunning } from "./errors.js";

const CONTINUATION = 0x0, TEXT = 0x1, BINARY = 0x2, CLOSE = 0x8, PING = 0x9, PONG = 0xa;

/** A larger message is sent in fragments: a frame from a client has at most 16 MiB. */
const FRAGMENT_BYTES = 1 << 20;

/** A message of a server has at most so many bytes (T42). */
const MAX_MESSAGE_BYTES = 64 << 20;

/** Between pings, as in the server; and for the response to a second one after a silence. */
const PING_MILLISECONDS = 30_000;
const GRACE_MILLISECONDS = 5000;

const CONNECT_MILLISECONDS = 10_000;
const ACCEPT_SALT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** Of the body of a refusal. */
const SHOWN_CHARACTERS = 200;

/** Connect, and upgrade. Throws `AccessDenied`, `DaemonNotRunning`, `ConnectionFailed`. */
export function openWebSocket(url: string, token: string | undefined): Promise<OpenWebSocket> {
  return new Promise((resolve, reject) => {
    const target = new URL(url.replace(/^ws/, "http"));
    const key = randomBytes(16).toString("base64");
    const request = (target.protocol === "https:" ? httpsRequest : httpRequest)(target, {
      headers: {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13",
        ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
      },
      timeout: CONNECT_MILLISECONDS,
      agent: false,
    });
    const fail = (reason: string) => reject(new ConnectionFailed(`cannot connect to ${url}: ${reason}`));
    request.on("timeout", () => request.destroy(new Error("no answer to the upgrade")));
    request.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "ECONNREFUSED") reject(new DaemonNotRunning(`no server is listening at ${url}`));
      else fail(error.message || String(error.code));
    });
    request.on("response", (response) => refused(response, url).then(reject, (error: Error) => fail(error.message)));
    request.on("upgrade", (response, socket, head) => {
      const accept = createHash("sha1").update(key + ACCEPT_SALT).digest("base64");
      if (response.headers["sec-websocket-accept"] === accept) {
        resolve(new NodeWebSocket(socket as Socket, head));
      } else {
        socket.destroy();
        fail("the answer to the upgrade is not that of a WebSocket server");
      }
    });
    request.end();
  });
}

async function refused(response: IncomingMessage, url: string): Promise<ConnectionFailed> {
  let body = "";
  response.setEncoding("utf8");
  for await (const piece of response as AsyncIterable<string>) {
    body += piece;
    if (body.length > SHOWN_CHARACTERS) break;
  }
  const status = response.statusCode ?? 0;
  const text = `${url} answers ${status}: ${body.slice(0, SHOWN_CHARACTERS).trim() || response.statusMessage}`;
  return status === 401 || status === 403 ? new AccessDenied(text, status) : new ConnectionFailed(text);
}

class NodeWebSocket implements OpenWebSocket {
  onMessage: (text: string) => void = () => undefined;
  onClose: () => void = () => undefined;
  private received: Buffer[] = [];
  private size = 0;
  private wanted = 2;
  private fragments: Buffer[] = [];
  private fragmentBytes = 0;
  private timer: NodeJS.Timeout;
  private heard = true;
  private closing = false;

  constructor(private readonly socket: Socket, head: Buffer) {
    socket.setTimeout(0);
    socket.setNoDelay(true);
    // The end of the socket is reported by its close.
    socket.on("error", () => undefined);
    socket.on("close", () => {
      clearTimeout(this.timer);
      this.onClose();
    });
    socket.on("data", (data: Buffer) => this.feed(data));
    this.timer = setTimeout(() => this.ping(), PING_MILLISECONDS).unref();
    // Not before the channel has set its functions.
    if (head.length) setImmediate(() => this.feed(head));
  }

  send(text: string): void {
    const payload = Buffer.from(text);
    for (let start = 0; start === 0 || start < payload.length; start += FRAGMENT_BYTES) {
      const piece = payload.subarray(start, start + FRAGMENT_BYTES);
      this.frame(start ? CONTINUATION : TEXT, piece, start + FRAGMENT_BYTES >= payload.length);
    }
  }

  close(): void {
    if (this.closing) return;
    this.closing = true;
    this.frame(CLOSE, Buffer.from([0x03, 0xe8]), true);
    this.socket.end();
  }

  terminate(): void {
    this.socket.destroy();
  }

  private frame(opcode: number, payload: Buffer, last: boolean): void {
    const size = payload.length;
    const head = Buffer.alloc(size < 126 ? 6 : size < 0x10000 ? 8 : 14);
    head[0] = (last ? 0x80 : 0) | opcode;
    head[1] = 0x80 | (size < 126 ? size : size < 0x10000 ? 126 : 127);
    if (head.length === 8) head.writeUInt16BE(size, 2);
    if (head.length === 14) head.writeBigUInt64BE(BigInt(size), 2);
    const mask = randomBytes(4);
    mask.copy(head, head.length - 4);
    const masked = Buffer.allocUnsafe(size);
    for (let at = 0; at < size; at++) masked[at] = payload[at]! ^ mask[at & 3]!;
    this.socket.cork();
    this.socket.write(head);
    this.socket.write(masked);
    this.socket.uncork();
  }

  private feed(data: Buffer): void {
    this.heard = true;
    this.received.push(data);
    this.size += data.length;
    while (this.size >= this.wanted) {
      const buffer = this.received.length === 1 ? this.received[0]! : Buffer.concat(this.received);
      const used = this.take(buffer);
      this.received = [buffer.subarray(used)];
      this.size = buffer.length - used;
    }
  }

  /** Take a frame. Sets `wanted` to the bytes that the next one needs, and returns how many were used. */
  private take(buffer: Buffer): number {
    const short = buffer[1]! & 0x7f;
    const head = short < 126 ? 2 : short === 126 ? 4 : 10;
    if (buffer.length < head) {
      this.wanted = head;
      return 0;
    }
    const size = short < 126 ? short : short === 126 ? buffer.readUInt16BE(2) : Number(buffer.readBigUInt64BE(2));
    if (buffer[1]! & 0x80 || size + this.fragmentBytes > MAX_MESSAGE_BYTES) {
      this.socket.destroy();
      this.wanted = Infinity;
      return 0;
    }
    if (buffer.length < head + size) {
      this.wanted = head + size;
      return 0;
    }
    this.wanted = 2;
    this.process(buffer[0]! & 0x0f, buffer.subarray(head, head + size), (buffer[0]! & 0x80) !== 0);
    return head + size;
  }

  private process(opcode: number, payload: Buffer, last: boolean): void {
    if (opcode === PING) {
      this.frame(PONG, payload, true);
    } else if (opcode === CLOSE) {
      this.close();
    } else if (opcode === TEXT || opcode === BINARY || opcode === CONTINUATION) {
      this.fragments.push(payload);
      this.fragmentBytes += payload.length;
      if (!last) return;
      const message = this.fragments.length === 1 ? payload : Buffer.concat(this.fragments);
      this.fragments = [];
      this.fragmentBytes = 0;
      this.onMessage(message.toString());
    }
  }

  /** After a silence: a second ping, for which the server has less time. This process itself may have stood still. */
  private ping(): void {
    const silent = !this.heard;
    this.heard = false;
    this.frame(PING, Buffer.alloc(0), true);
    this.timer = silent
      ? setTimeout(() => (this.heard ? this.ping() : this.socket.destroy()), GRACE_MILLISECONDS)
      : setTimeout(() => this.ping(), PING_MILLISECONDS);
    this.timer.unref();
  }
}
