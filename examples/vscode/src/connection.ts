/** The connection to the executor, which all terminals and tasks of a window share. */

import { homedir } from "node:os";

import { connect, SessionAttached, SessionLost } from "execclient";
import type { Executor } from "execclient";
import * as vscode from "vscode";

/** Where a window keeps the id of its session, so that detached processes are there after a reload. */
const SESSION_KEY = "execserver.session";

/** How long detached processes run without a window, if the daemon allows that. */
const DETACHED_MILLISECONDS = 3_600_000;

export class ExecutorConnection {
  private current: Promise<Executor> | undefined;

  constructor(private readonly memory: vscode.Memento) {}

  /** Do something at the executor. It replaces lost connections itself; here its session is replaced, once that is lost. */
  async use<T>(act: (executor: Executor) => Promise<T>): Promise<T> {
    const used = this.executor();
    try {
      return await act(await used);
    } catch (error) {
      if (!(error instanceof SessionLost)) throw error;
      if (this.current === used) this.current = undefined;
      return act(await this.executor());
    }
  }

  /** The window is closed: end all processes, or leave them to the daemon. */
  async close(): Promise<void> {
    const executor = await this.current?.catch(() => undefined);
    this.current = undefined;
    await executor?.close({ keep: detaches() });
  }

  private executor(): Promise<Executor> {
    this.current ??= this.open().catch((error: unknown) => {
      this.current = undefined;
      throw error;
    });
    return this.current;
  }

  private async open(): Promise<Executor> {
    const url = setting("url") || ownDaemon();
    const options = { clientName: "vscode" };
    const earlier = detaches() ? this.memory.get<string>(SESSION_KEY) : undefined;
    const executor = earlier === undefined
      ? await connect(url, options)
      : await connect(url, { ...options, sessionId: earlier }).catch((error: unknown) => {
        // Its time is over, or another window has it.
        if (error instanceof SessionLost || error instanceof SessionAttached) return connect(url, options);
        throw error;
      });
    if (detaches()) {
      await executor.call("session/setTtl", { ttlMs: DETACHED_MILLISECONDS });
      await this.memory.update(SESSION_KEY, executor.sessionId);
    }
    return executor;
  }
}

/** Where a daemon of this user listens by default. */
function ownDaemon(): string {
  const { XDG_RUNTIME_DIR, XDG_STATE_HOME } = process.env;
  return `unix://${XDG_RUNTIME_DIR || XDG_STATE_HOME || `${homedir()}/.local/state`}/execserver/execserver.sock`;
}

/** A setting of this extension; empty if it is not set. */
export function setting(name: string): string {
  return vscode.workspace.getConfiguration("execserver").get(name, "");
}

/** Whether a closed terminal leaves its processes running. */
export function detaches(): boolean {
  return setting("closedTerminal") === "detach";
}
