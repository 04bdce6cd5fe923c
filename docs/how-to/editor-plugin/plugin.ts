import { spawn } from "node:child_process";
import { createMessageConnection, ResponseError, StreamMessageReader, StreamMessageWriter } from "vscode-jsonrpc/node";

type Output = { processId: string; seq: number; stream: string; chunk: string };
type Exited = { processId: string; seq: number; exitCode: number };
type Fault = { code: string; field?: string };

const base64 = (text: string): string => Buffer.from(text).toString("base64");

// The daemon is our child: it ends with us, and everything it started ends with it.
const command = process.env.EXECSERVER ?? "execserver";
const daemon = spawn(command, ["serve", "--listen", "stdio"], { stdio: ["pipe", "pipe", "inherit"] });
const connection = createMessageConnection(
  new StreamMessageReader(daemon.stdout), new StreamMessageWriter(daemon.stdin));
const greeted = new Promise<void>((resolve) => connection.onNotification("process/output", (output: Output) => {
  console.log(`${output.stream}: ${Buffer.from(output.chunk, "base64").toString().trimEnd()}`);
  resolve();
}));
connection.onNotification("process/exited", ({ exitCode }: Exited) => console.log(`exited: ${exitCode}`));
const closed = new Promise<void>((resolve) => connection.onNotification("process/closed", () => resolve()));
connection.listen();

await connection.sendRequest("initialize", { clientName: "editor-plugin" });
await connection.sendNotification("initialized");

// A shell whose input stays open: it reads what we write, and what it says comes as notifications.
await connection.sendRequest("process/start", {
  processId: "shell", argv: ["/bin/sh"], cwd: "file:///tmp", env: { PATH: "/usr/bin:/bin" }, tty: false, pipeStdin: true });
await connection.sendRequest("process/write", { processId: "shell", writeId: "1", chunk: base64("echo hello from $PWD\n") });
await greeted;

// An error says in `data.code` what is wrong, in a word for programs.
await connection.sendRequest("fs/readFile", { path: "file:///no/such/file" }).catch((error: ResponseError<Fault>) =>
  console.log(`refused: ${error.code} ${error.data?.code}: ${error.message}`));

// The shell would wait for more: end it, with everything that it started, and then the daemon.
await connection.sendRequest("process/terminate", { processId: "shell", scope: "tree" });
await closed;
daemon.stdin.end();
