/** Where and how to connect from Node. */

import { spawn } from "node:child_process";
import { stat } from "node:fs/promises";
import { createConnection } from "node:net";

import { StreamMessageReader, StreamMessageWriter } from "vscode-jsonrpc/node";

import { webSocketChannel } from "./channels.js";
import type { Channel } from "./connection.js";
import { ConnectionFailed, DaemonNotRunning, InsecureToken, UnsupportedUrl, UntrustedServer } from "./errors.js";
import { openWebSocket } from "./node_websocket.js";
import type { Target } from "./recovery.js";

/** Options of the transports. */
export interface TransportOptions {
  /** For a WebSocket whose server requires credentials; a function is called at each connection. */
  token?: string | (() => string | Promise<string>);
  /** With `stdio:`: the daemon's program and arguments, to which `--listen stdio` is added. */
  command?: readonly string[];
  /** With `stdio:`: the daemon's environment; that of this process by default. */
  env?: NodeJS.ProcessEnv;
}

/** The server of a URL. Throws `UnsupportedUrl`, `InsecureToken`. */
export function targetOf(url: string, options: TransportOptions): Target {
  if (/^stdio:(\/\/)?$/.test(url)) return { url, recoverable: false, open: () => openStdio(options) };
  if (url.startsWith("unix:///")) {
    const path = decodeURIComponent(url.slice("unix://".length));
    return { url, recoverable: true, open: () => openUnix(path, url) };
  }
  if (!/^wss?:\/\/./.test(url)) throw new UnsupportedUrl(`use a unix:///, ws://, wss:// or stdio: URL, not ${url}`);
  const { token } = options;
  if (token !== undefined && url.startsWith("ws:") && !isLoopback(new URL(url).hostname)) {
    throw new InsecureToken(`the token would cross the network unencrypted to ${url}: use wss:// or a forwarded port`);
  }
  const open = async () => {
    const current = typeof token === "function" ? await token() : token;
    return webSocketChannel(await openWebSocket(url, current));
  };
  return { url, recoverable: true, open };
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127(\.\d{1,3}){3}$/.test(host);
}

function readerOf(stream: NodeJS.ReadableStream): StreamMessageReader {
  const reader = new StreamMessageReader(stream);
  // Its timer would run on after a connection that ended within a message, and keep the process from its end.
  reader.partialMessageTimeout = 0;
  return reader;
}

async function openUnix(path: string, url: string): Promise<Channel> {
  const failed = (error: NodeJS.ErrnoException) => error.code === "ECONNREFUSED" || error.code === "ENOENT"
    ? new DaemonNotRunning(`no server is listening at ${url}: start one by \`execserver serve\``)
    : new ConnectionFailed(`cannot connect to ${url}: ${error.message}`, { cause: error });
  const owner = await stat(path).then(({ uid }) => uid, (error: NodeJS.ErrnoException) => Promise.reject(failed(error)));
  // Node cannot ask the kernel for the peer. Only its own user, or root, can have made a socket with this owner.
  if (owner !== 0 && owner !== process.getuid!()) {
    throw new UntrustedServer(`the socket ${path} belongs to the user ${owner}, who is neither this one nor root`);
  }
  const socket = createConnection(path);
  await new Promise<void>((resolve, reject) => {
    socket.once("connect", resolve);
    socket.once("error", (error) => reject(failed(error)));
  });
  const ended = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  return {
    reader: readerOf(socket),
    writer: new StreamMessageWriter(socket),
    close: () => {
      socket.end();
      return ended;
    },
    cut: () => socket.destroy(),
  };
}

async function openStdio(options: TransportOptions): Promise<Channel> {
  const [program, ...args] = options.command ?? ["execserver", "serve"];
  if (program === undefined) throw new UnsupportedUrl("the command of stdio: has no program");
  const daemon = spawn(program, [...args, "--listen", "stdio"], {
    stdio: ["pipe", "pipe", "inherit"],
    ...(options.env && { env: options.env }),
  });
  await new Promise<void>((resolve, reject) => {
    daemon.once("spawn", resolve);
    daemon.once("error", (error) => reject(new ConnectionFailed(`cannot start ${program}: ${error.message}`)));
  });
  const ended = new Promise<void>((resolve) => daemon.once("close", () => resolve()));
  return {
    reader: readerOf(daemon.stdout),
    writer: new StreamMessageWriter(daemon.stdin),
    // The daemon ends at the end of its input, after all processes of the session.
    close: () => {
      daemon.stdin.end();
      return ended;
    },
    cut: () => {
      daemon.stdin.destroy();
      daemon.stdout.destroy();
    },
  };
}
