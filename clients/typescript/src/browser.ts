/**
 * The entry for browsers: WebSockets.
 *
 * A daemon and a relay refuse an upgrade with an `Origin` (`docs/protocol.md`, T33), which each browser sends: the
 * page's own server has to authenticate the user and to forward the WebSocket without that header.
 */

import "vscode-jsonrpc/browser";

import { webSocketChannel } from "./channels.js";
import type { OpenWebSocket } from "./channels.js";
import type { Channel } from "./connection.js";
import { ConnectionFailed, UnsupportedUrl } from "./errors.js";
import { Executor } from "./executor.js";
import type { ExecutorOptions } from "./executor.js";

export * from "./api.js";

/** How to connect from a browser. */
export interface ConnectOptions extends ExecutorOptions {
  /** Makes the WebSocket; by default `new WebSocket(url)`. */
  webSocket?: (url: string) => WebSocket;
}

/**
 * Connect to an executor.
 *
 * @param url - `ws://…` or `wss://…`.
 *
 * Throws `ConnectionFailed`, `SessionLost`, `SessionAttached`, `ExecutorDraining`, `UnsupportedUrl`.
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Executor> {
  if (!/^wss?:\/\//.test(url)) throw new UnsupportedUrl(`a browser connects to ws:// and wss:// URLs, not to ${url}`);
  const make = options.webSocket ?? ((each: string) => new WebSocket(each));
  return Executor.open({ url, recoverable: true, open: () => open(make(url), url) }, options);
}

function open(socket: WebSocket, url: string): Promise<Channel> {
  return new Promise((resolve, reject) => {
    // The browser tells a page neither the reason nor the status.
    socket.onclose = () => reject(new ConnectionFailed(`cannot connect to ${url}`));
    socket.onopen = () => {
      const wrapped: OpenWebSocket = {
        send: (text) => socket.send(text),
        close: () => socket.close(1000),
        terminate: () => {
          socket.close();
          wrapped.onClose();
        },
        onMessage: () => undefined,
        onClose: () => undefined,
      };
      socket.onmessage = ({ data }) => wrapped.onMessage(String(data));
      socket.onclose = () => wrapped.onClose();
      resolve(webSocketChannel(wrapped));
    };
  });
}
