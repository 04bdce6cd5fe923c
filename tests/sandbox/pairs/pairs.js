// What Node builds on pairs of sockets, and on addresses: prints `name=errno` for each, 0 when it worked.
// pairs.js STREAM_LISTENER DATAGRAM_LISTENER FREE_PATH
const { fork, spawn, spawnSync } = require("node:child_process");
const { once } = require("node:events");
const { text } = require("node:stream/consumers");
const { Worker } = require("node:worker_threads");
const assert = require("node:assert");
const net = require("node:net");

const [listener, , free] = process.argv.slice(2);

if (process.send) {
  process.once("message", (message) => process.send(message + 1, () => process.disconnect()));
} else {
  main();
}

const acts = {
  "messages to a child": async () => {
    const child = fork(__filename);
    child.send(1);
    const [message] = await once(child, "message");
    assert.strictEqual(message, 2);
    await once(child, "exit");
  },
  "the end of input": async () => {
    const child = spawn("cat");
    child.stdin.end("text");
    assert.strictEqual(await text(child.stdout), "text");
  },
  "input at once": async () => {
    assert.strictEqual(String(spawnSync("cat", { input: "text" }).stdout), "text");
  },
  "a script with output and errors": async () => {
    const child = spawn("sh", ["-c", "cat; echo bad >&2; exit 3"], { stdio: "pipe" });
    child.stdin.end();
    const code = once(child, "close");
    assert.strictEqual(await text(child.stderr), "bad\n");
    assert.strictEqual((await code)[0], 3);
  },
  "a thread": async () => {
    const thread = new Worker("require('worker_threads').parentPort.postMessage(5)", { eval: true });
    assert.strictEqual((await once(thread, "message"))[0], 5);
  },
  "a fourth pipe": async () => {
    const child = spawn("sh", ["-c", "cat <&3"], { stdio: ["ignore", "pipe", "inherit", "pipe"] });
    child.stdio[3].end("more");
    assert.strictEqual(await text(child.stdout), "more");
  },
  "to a connection": async () => {
    const socket = net.connect(listener);
    await once(socket, "connect");
    socket.destroy();
  },
  "to a server": async () => {
    const server = net.createServer().listen(free + "n");
    await once(server, "listening");
    server.close();
  },
  "to a port": async () => {
    const server = net.createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    server.close();
  },
};

async function main() {
  await null; // until the table above is there
  for (const [name, act] of Object.entries(acts)) {
    let number = 0;
    try {
      await act();
    } catch (error) {
      number = error.errno ? Math.abs(error.errno) : 255;
    }
    console.log(`${name}=${number}`);
  }
}
