/** The extension with a real daemon, and a person at the mock of VS Code. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type * as api from "vscode";

import { activate, deactivate } from "../src/extension.js";
import { person, Terminal } from "./vscode.js";
import type { Task } from "./vscode.js";

const EXECSERVER = process.env["EXECSERVER"] ?? `${__dirname}/../../../../.venv/bin/execserver`;

class Daemon {
  private constructor(private readonly process: ChildProcess) {}

  static async start(folder: string): Promise<Daemon> {
    // A test that is killed leaves no daemon behind.
    const child = spawn("setpriv", ["--pdeathsig", "TERM", EXECSERVER, "serve", "--listen", `unix://${folder}/socket`], {
      env: { HOME: folder, XDG_STATE_HOME: `${folder}/state`, EXECSERVER_CONFIG: "", PATH: process.env["PATH"], PS1: "$ " },
      cwd: folder, stdio: ["ignore", "pipe", "ignore"],
    });
    await once(child.stdout, "data");
    return new Daemon(child);
  }

  /** Kill the server, which the supervisor replaces. */
  killServer(): void {
    const { pid } = this.process;
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ");
    const server = children.find((each) => readFileSync(`/proc/${each}/cmdline`, "utf8").includes("execserver"));
    process.kill(Number(server), "SIGKILL");
  }

  async stop(): Promise<void> {
    this.process.kill("SIGTERM");
    await once(this.process, "exit");
  }
}

/** Wait until a process of this machine is gone. */
async function untilGone(pid: string): Promise<void> {
  while (existsSync(`/proc/${pid}`)) await sleep(20);
}

/** What the shell of a terminal prints for a command. In the typed line there are quotes between `<` and `>`. */
async function answer(terminal: Terminal, command: string): Promise<string> {
  const from = terminal.text.length;
  terminal.type(`printf '%s' '<'; printf '%s' "$(${command})"; printf '%s\\n' '>'\r`);
  for (;;) {
    const found = /<([^'<>]*)>\r\n/.exec(terminal.text.slice(from));
    if (found) return found[1]!;
    await sleep(20);
  }
}

describe("the extension", () => {
  const folder = mkdtempSync("/tmp/vscode-");
  const memory = new Map<string, unknown>();
  let daemon: Daemon;

  function load(): void {
    const workspaceState = {
      get: (key: string) => memory.get(key),
      update: async (key: string, value: unknown) => void memory.set(key, value),
    };
    activate({ subscriptions: [], workspaceState } as unknown as api.ExtensionContext);
  }

  function openTerminal(): Terminal {
    person.commands.get("execserver.openTerminal")!();
    return person.terminals.at(-1)!;
  }

  async function runTask(definition: api.TaskDefinition): Promise<Terminal> {
    const provider = person.taskProviders.get("execserver")!;
    const task = provider.resolveTask({ definition, name: "it", scope: 2 } as unknown as api.Task, undefined!) as unknown as Task;
    return new Terminal(await task.execution.callback(task.definition));
  }

  before(async () => {
    daemon = await Daemon.start(folder);
  });
  beforeEach(() => {
    memory.clear();
    person.errors.length = 0;
    person.settings = { "execserver.url": `unix://${folder}/socket`, "execserver.shell": "/bin/sh" };
    load();
  });
  afterEach(() => deactivate());
  after(async () => {
    await daemon.stop();
    rmSync(folder, { recursive: true });
  });

  test("registers what its manifest contributes", () => {
    const { contributes } = JSON.parse(readFileSync(`${__dirname}/../../package.json`, "utf8"));
    const ids = (list: Array<Record<string, string>>, key: string) => list.map((each) => each[key]);
    assert.deepEqual([...person.commands.keys()], ids(contributes.commands, "command"));
    assert.deepEqual([...person.profiles.keys()], ids(contributes.terminal.profiles, "id"));
    assert.deepEqual([...person.taskProviders.keys()], ids(contributes.taskDefinitions, "type"));
  });

  test("a terminal is typed at, and ends with the exit code of its shell", async () => {
    const profile = await person.profiles.get("execserver.terminal")!.provideTerminalProfile(undefined!);
    const terminal = new Terminal((profile!.options as api.ExtensionTerminalOptions).pty);
    assert.equal(await answer(terminal, "echo $((6 * 7)) $TERM"), "42 xterm-256color");
    terminal.type("exit 3\r");
    assert.equal(await terminal.closed, 3);
    assert.deepEqual(person.errors, []);
  });

  test("a character that arrives in two pieces is shown whole", async () => {
    const terminal = await runTask({ type: "execserver", command: "printf 'gr\\303'; sleep 0.3; printf '\\274n\\n'" });
    assert.equal(await terminal.closed, 0);
    assert.equal(terminal.text, "grün\r\n");
  });

  test("a terminal has the size of its panel, also one that changes while it starts", async () => {
    const terminal = openTerminal();
    terminal.resize(21, 71);
    assert.equal(await answer(terminal, "stty size"), "21 71");
    for (let columns = 72; columns <= 100; columns++) terminal.resize(30, columns);
    while ((await answer(terminal, "stty size")) !== "30 100") await sleep(20);
    terminal.dispose();
  });

  test("a line that the terminal would cut rings the bell, and is not written", async () => {
    const terminal = await runTask({ type: "execserver", command: "echo ready; read line; echo got $line" });
    await terminal.until("ready");
    terminal.type("x".repeat(5000));
    await terminal.until("\x07");
    terminal.type("short\r");
    assert.equal(await terminal.closed, 0);
    assert.match(terminal.text, /got short\r\n$/);
  });

  test("a closed terminal ends its processes", async () => {
    const terminal = openTerminal();
    const pid = await answer(terminal, "sleep 60 >&2 & echo $!");
    terminal.dispose();
    await untilGone(pid);
  });

  test("a closed terminal can be left running, and attached again, also after a reload of the window", async () => {
    person.settings["execserver.closedTerminal"] = "detach";
    const attach = async () => {
      person.choose = ([first]) => first;
      await person.commands.get("execserver.attachTerminal")!();
      return person.terminals.at(-1)!;
    };
    const terminal = openTerminal();
    const pid = await answer(terminal, "echo $PPID $$");
    assert.equal(await attach(), terminal);
    assert.deepEqual(person.choices, [], "an open terminal is not offered");
    terminal.dispose();

    const attached = await attach();
    await attached.until(`<${pid}>`);
    assert.equal(await answer(attached, "echo $PPID $$"), pid);

    await deactivate();
    load();
    const reloaded = await attach();
    assert.notEqual(reloaded, attached);
    assert.equal(await answer(reloaded, "echo $PPID $$"), pid);
    reloaded.type("exit 5\r");
    assert.equal(await reloaded.closed, 5);
    person.settings["execserver.closedTerminal"] = "end";
  });

  test("terminals survive a killed server: nothing is lost, typed text neither", async () => {
    const terminal = openTerminal();
    await answer(terminal, "true");
    terminal.type("stty -echo; i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i; [ $((i % 50)) = 0 ] && sleep 0.05; done\r");
    await terminal.until("line 300\r\n");
    daemon.killServer();
    terminal.type("echo typed meanwhile\r");
    await terminal.until("typed meanwhile\r\n");
    const lines = [...terminal.text.matchAll(/line (\d+)\r\n/g)].map(([, number]) => Number(number));
    assert.deepEqual(lines, Array.from({ length: 2000 }, (_, index) => index + 1));
    assert.deepEqual(person.errors, []);
    terminal.dispose();
  });

  test("a shell that does not exist, and a daemon that is not there, are shown", async () => {
    person.settings["execserver.shell"] = "/no/such/shell";
    const missing = openTerminal();
    assert.equal(await missing.closed, 1);
    assert.match(missing.text, /no\/such\/shell/);
    assert.match(person.errors[0]!, /no\/such\/shell/);
    await deactivate();

    person.settings["execserver.url"] = `unix://${folder}/other`;
    load();
    assert.equal(await openTerminal().closed, 1);
    assert.match(person.errors[1]!, /start one by `execserver serve`/);
  });

  test("after the end of a daemon, new terminals are those of the next one", async () => {
    const place = mkdtempSync("/tmp/vscode-");
    const first = await Daemon.start(place);
    person.settings["execserver.url"] = `unix://${place}/socket`;
    const terminal = openTerminal();
    await answer(terminal, "true");
    await first.stop();
    assert.notEqual(await terminal.closed, undefined);
    const second = await Daemon.start(place);
    assert.equal(await answer(openTerminal(), "echo up again"), "up again");
    await deactivate();
    await second.stop();
    rmSync(place, { recursive: true });
  });

  test("a task runs in its folder, and has its exit code", async () => {
    const task = await runTask({ type: "execserver", command: "pwd; exit 7", cwd: "/usr" });
    assert.equal(await task.closed, 7);
    assert.equal(task.text, "/usr\r\n");
  });

  test("a task that a person ends is killed, whatever becomes of terminals", async () => {
    person.settings["execserver.closedTerminal"] = "detach";
    const task = await runTask({ type: "execserver", command: "echo pid $$.; sleep 60" });
    await task.until(".");
    task.dispose();
    await untilGone(/pid (\d+)/.exec(task.text)![1]!);
  });

  test("the scripts of the executor's package.json are tasks", async () => {
    const provider = person.taskProviders.get("execserver")!;
    assert.deepEqual(await provider.provideTasks(undefined!), []);
    const project = `${folder}/project`;
    mkdirSync(project);
    person.settings["execserver.folder"] = project;
    assert.deepEqual(await provider.provideTasks(undefined!), []);
    writeFileSync(`${project}/package.json`, JSON.stringify({ scripts: { "it's": "echo its output; exit 4" } }));
    const [task] = (await provider.provideTasks(undefined!)) as unknown as Task[];
    assert.equal(task!.name, "npm: it's");
    const terminal = new Terminal(await task!.execution.callback(task!.definition));
    assert.equal(await terminal.closed, 4);
    assert.match(terminal.text, /its output\r\n/);
  });
});
