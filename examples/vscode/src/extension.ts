/** Terminals and tasks on an executor. */

import type { Process } from "execclient";
import * as vscode from "vscode";

import { detaches, ExecutorConnection, setting } from "./connection.js";
import { ExecutorTasks } from "./tasks.js";
import { ExecutorTerminal } from "./terminal.js";
import type { Start } from "./terminal.js";

let connection: ExecutorConnection | undefined;

export function activate(context: vscode.ExtensionContext): void {
  const opened = (connection = new ExecutorConnection(context.workspaceState));

  const onError = (error: unknown): void => {
    void vscode.window.showErrorMessage(`execserver: ${String(error)}`);
  };
  const shown = new Set<string>();
  function terminal(name: string, start: Start): vscode.ExtensionTerminalOptions {
    let id: string | undefined;
    const noted: Start = async (size) => {
      const process = await start(size);
      shown.add((id = process.id));
      return process;
    };
    const onClose = () => {
      if (id !== undefined) shown.delete(id);
      return detaches() ? "detach" : "end";
    };
    return { name, pty: new ExecutorTerminal(noted, onClose, onError) };
  }
  const shell = (): vscode.ExtensionTerminalOptions => terminal("Executor", (size) => {
    const folder = setting("folder");
    return opened.use((executor) => executor.start([setting("shell")], {
      tty: true, size, env: { TERM: "xterm-256color" }, ...(folder && { cwd: folder }),
    }));
  });

  async function attach(): Promise<void> {
    const { processes } = await opened.use((executor) => executor.call("process/list", { argv: true }));
    const choices = processes
      .filter(({ state, tty, processId }) => state === "running" && tty && !shown.has(processId))
      .map(({ processId, argv, pid }) => ({ label: argv?.join(" ") ?? processId, description: `process ${pid}`, processId }));
    const chosen = await vscode.window.showQuickPick(choices, { placeHolder: "A terminal that runs at the executor" });
    if (!chosen) return;
    // With its earlier output, as far as the daemon keeps it.
    const start: Start = async ({ rows, cols }): Promise<Process> => {
      const process = await opened.use((executor) => executor.attach(chosen.processId));
      await process.resize(rows, cols);
      return process;
    };
    vscode.window.createTerminal(terminal(chosen.label, start)).show();
  }

  context.subscriptions.push(
    vscode.commands.registerCommand("execserver.openTerminal", () => vscode.window.createTerminal(shell()).show()),
    vscode.commands.registerCommand("execserver.attachTerminal", () => attach().catch(onError)),
    vscode.window.registerTerminalProfileProvider("execserver.terminal", {
      provideTerminalProfile: () => new vscode.TerminalProfile(shell()),
    }),
    vscode.tasks.registerTaskProvider("execserver", new ExecutorTasks(opened, onError)),
  );
}

export async function deactivate(): Promise<void> {
  await connection?.close();
}
