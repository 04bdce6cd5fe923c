/** Tasks that an executor runs: those of `tasks.json`, and the scripts of the package.json at the executor. */

import { NotFound } from "execclient";
import * as vscode from "vscode";

import { setting } from "./connection.js";
import type { ExecutorConnection } from "./connection.js";
import { ExecutorTerminal } from "./terminal.js";
import type { Start } from "./terminal.js";

/** A task of `tasks.json`, as `taskDefinitions` in package.json describes it. */
interface ExecutorTask extends vscode.TaskDefinition {
  command: string;
  cwd?: string;
}

export class ExecutorTasks implements vscode.TaskProvider {
  constructor(private readonly connection: ExecutorConnection, private readonly onError: (error: unknown) => void) {}

  async provideTasks(): Promise<vscode.Task[]> {
    const folder = setting("folder");
    if (!folder) return [];
    try {
      const bytes = await this.connection.use((executor) => executor.readFile(`${folder}/package.json`));
      const text = Buffer.from(bytes).toString();
      const scripts = Object.keys((JSON.parse(text) as { scripts?: object }).scripts ?? {});
      return scripts.map((name) => this.task({ type: "execserver", command: `npm run ${quoted(name)}` }, `npm: ${name}`));
    } catch (error) {
      if (error instanceof NotFound || error instanceof SyntaxError) return [];
      throw error;
    }
  }

  resolveTask(task: vscode.Task): vscode.Task {
    return this.task(task.definition as ExecutorTask, task.name, task.scope);
  }

  private task(definition: ExecutorTask, name: string, scope: vscode.Task["scope"] = vscode.TaskScope.Workspace): vscode.Task {
    // VS Code passes the definition with its variables replaced.
    const execution = new vscode.CustomExecution(async (resolved) => this.terminal(resolved as ExecutorTask));
    return new vscode.Task(definition, scope, name, "execserver", execution);
  }

  private terminal({ command, cwd }: ExecutorTask): vscode.Pseudoterminal {
    const folder = cwd ?? setting("folder");
    const start: Start = (size) => this.connection.use((executor) => (
      executor.start(["/bin/sh", "-c", command], { tty: true, size, ...(folder && { cwd: folder }) })
    ));
    return new ExecutorTerminal(start, () => "end", this.onError);
  }
}

/** A word for the shell. */
function quoted(word: string): string {
  return `'${word.replaceAll("'", "'\\''")}'`;
}
