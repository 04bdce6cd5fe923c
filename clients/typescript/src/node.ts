/** The entry for Node: Unix sockets, WebSockets, and a daemon of one's own over stdio. */

import { Executor } from "./executor.js";
import type { ExecutorOptions } from "./executor.js";
import { targetOf } from "./node_target.js";
import type { TransportOptions } from "./node_target.js";

export * from "./api.js";

/** How to connect from Node. */
export interface ConnectOptions extends ExecutorOptions, TransportOptions {}

/**
 * Connect to an executor.
 *
 * @param url - `unix:///PATH`, `ws://…`, `wss://…`, or `stdio:` for a daemon that is started here, and that ends with
 *   its connection.
 *
 * Throws `ConnectionFailed` and its classes, `SessionLost`, `SessionAttached`, `ExecutorDraining`, `UnsupportedUrl`.
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Executor> {
  return Executor.open(targetOf(url, options), options);
}
