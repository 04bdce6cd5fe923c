/** What the entries for Node and for browsers have in common. */

export { pathUri, uriPath } from "./bytes.js";
export * from "./errors.js";
export { Executor } from "./executor.js";
export type { EventName, ExecutorOptions, RunResult, StartOptions } from "./executor.js";
export type { Exit, Gap, Output, Piece } from "./inbox.js";
export { Process } from "./process.js";
export type { CallOptions } from "./session.js";
export { Watch } from "./watch.js";
export type { Change, WatchOptions } from "./watch.js";
export type * as wire from "./wire.js";
