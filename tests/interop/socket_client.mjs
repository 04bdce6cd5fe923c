// vscode-jsonrpc over a Unix socket: node socket_client.mjs PATH. Prints what came, a line each.

import { connect } from "node:net";
import { once } from "node:events";
import {
  CancellationTokenSource, createMessageConnection, SocketMessageReader, SocketMessageWriter,
} from "vscode-jsonrpc/node";

const socket = connect(process.argv[2]);
await once(socket, "connect");
const connection = createMessageConnection(new SocketMessageReader(socket), new SocketMessageWriter(socket));
const say = (...words) => console.log(words.join(" "));

let output = "";
let waiting = () => {};
const until = (text) => new Promise((resolve) => {
  waiting = () => { if (output.includes(text)) resolve(); };
  waiting();
});
connection.onNotification("process/output", ({ chunk }) => {
  output += Buffer.from(chunk, "base64");
  waiting();
});
connection.onNotification("process/exited", ({ exitCode }) => say("exited", exitCode));
const closed = new Promise((resolve) => connection.onNotification("process/closed", resolve));
connection.onError(([error]) => say("connection error", error));
connection.onUnhandledNotification(({ method }) => say("unhandled", method));
connection.listen();

await connection.sendRequest("initialize", { clientName: "socket_client" });
await connection.sendNotification("initialized");
const start = { processId: "p", argv: ["/bin/cat"], cwd: "file:///", env: {}, tty: false, pipeStdin: true };
say("started", (await connection.sendRequest("process/start", start)).processId);
const write = (text, writeId) => connection.sendRequest(
  "process/write", { processId: "p", chunk: Buffer.from(text).toString("base64"), writeId });
say("written", (await write("grüße\n", "1")).status);
await until("grüße\n");

// `$/cancelRequest` asks for nothing that the daemon knows: the request it is about is answered all the same.
const source = new CancellationTokenSource();
const read = connection.sendRequest("process/read", { processId: "p", afterSeq: 1, waitMs: 30000 }, source.token);
source.cancel();
say("still there", (await connection.sendRequest("environment/status")).status);
await write("more\n", "2");
say("read", (await read).chunks.map(({ chunk }) => Buffer.from(chunk, "base64")).join("").trim());
await until("more\n");
say("output", JSON.stringify(output));

for (const [method, params] of [
  ["fs/readFile", { path: "file:///no/such/file" }], ["process/read", {}], ["no/such/method", {}],
]) {
  await connection.sendRequest(method, params).catch(
    (error) => say("refused", error.code, error.data.code, error.data.field ?? "-"));
}

say("running", (await connection.sendRequest("process/terminate", { processId: "p" })).running);
await closed;
connection.end();
socket.end();
