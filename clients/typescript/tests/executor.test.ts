/** The client with a real daemon, over each transport. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import {
  AccessDenied, connect, ConnectionFailed, DaemonNotRunning, ExecutorClosed, InsecureToken, InvalidParams, LineTooLong,
  NotFound, Refused, RequestTooLarge, SessionLost, StdinUnavailable, SystemFailure, UnsupportedUrl,
} from "execclient";
import type { Executor, Process } from "execclient";

import { Daemon, environment, EXECSERVER, SOCKETS, temporaryFolder } from "./daemons.js";

async function text(process: Process): Promise<string> {
  const pieces: Uint8Array[] = [];
  for await (const piece of process) {
    assert.equal(piece.kind, "output");
    if (piece.kind === "output") pieces.push(piece.data);
  }
  return Buffer.concat(pieces).toString();
}

/** Wait until the output contains a text. */
async function outputWith(process: Process, wanted: string): Promise<void> {
  let seen = "";
  for await (const piece of process) {
    if (piece.kind === "output") seen += Buffer.from(piece.data).toString();
    if (seen.includes(wanted)) return;
  }
  assert.fail(`the output ended without ${wanted}: ${seen}`);
}

for (const transport of ["stdio", ...SOCKETS] as const) {
  describe(`over ${transport}`, () => {
    const folder = temporaryFolder();
    let daemon: Daemon | undefined;
    let executor: Executor;

    before(async () => {
      if (transport !== "stdio") daemon = await Daemon.start(transport);
      executor = await connect(daemon?.url ?? "stdio:", {
        command: [EXECSERVER, "serve", "--log-level", "warning"], env: environment(folder.path),
      });
    });

    after(async () => {
      await executor.close();
      await daemon?.stop();
      folder.remove();
    });

    test("a command has its input, its output and its exit code", async () => {
      const script = "cat; echo $WORD >&2; pwd; exit 3";
      const result = await executor.run(["sh", "-c", script], { input: "grüße\n", cwd: "/usr", env: { WORD: "w" } });
      assert.equal(result.stdoutText, "grüße\n/usr\n");
      assert.equal(result.stderrText, "w\n");
      assert.equal(result.exitCode, 3);
      assert.equal(result.cause, "normal");
      assert.equal(result.incomplete, false);
    });

    test("twenty megabytes arrive whole, both ways", async () => {
      const bytes = Buffer.alloc(20 << 20, "0123456789abcdef\n");
      const result = await executor.run(["cat"], { input: bytes });
      assert.ok(bytes.equals(result.stdout));
    });

    test("many small processes run at a time", async () => {
      const numbers = Array.from({ length: 20 }, (_, index) => index);
      const results = await Promise.all(numbers.map((each) => executor.run(["echo", `${each}`])));
      assert.deepEqual(results.map(({ stdoutText }) => Number(stdoutText)), numbers);
    });

    test("a terminal has its size, and is typed at", async () => {
      const process = await executor.start(["sh", "-c", "stty size; read line; stty size; echo got $line"], {
        tty: true, size: { rows: 10, cols: 90 },
      });
      await outputWith(process, "10 90");
      await process.resize(11, 91);
      await process.write("typed\n");
      const rest = await text(process);
      assert.match(rest, /11 91/);
      assert.match(rest, /got typed/);
    });

    test("signals and kills end a process", async () => {
      const trapped = await executor.start(["sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"]);
      await outputWith(trapped, "ready");
      await trapped.signal("SIGTERM");
      assert.equal((await trapped.exited()).exitCode, 9);

      const sleeping = await executor.start(["sleep", "60"]);
      assert.equal(await sleeping.terminate(), true);
      assert.deepEqual([(await sleeping.exited()).exitCode, sleeping.exit?.cause], [137, "terminated"]);

      const late = await executor.run(["sleep", "60"], { timeout: 50 });
      assert.equal(late.cause, "timeout");
    });

    test("files are written and read", async () => {
      const path = `${folder.path}/ein Name`;
      const bytes = Buffer.from([0, 255, 10, 13]);
      await executor.writeFile(path, bytes);
      assert.ok(bytes.equals(await executor.readFile(path)));
      const { entries } = await executor.call("fs/readDirectory", { path: `file://${folder.path}` });
      assert.ok(entries.some(({ fileName }) => fileName === "ein Name"));
    });

    test("an error response is the class of its number or name", async () => {
      await assert.rejects(executor.readFile("/no/such/file"), (error: NotFound) => {
        assert.ok(error instanceof NotFound);
        assert.deepEqual([error.code, error.wireCode, error.wireName, error.errno], ["not_found", -32004, "not_found", 2]);
        return true;
      });
      await assert.rejects(executor.start(["/no/such/program"]), (error: SystemFailure) => {
        assert.ok(error instanceof SystemFailure);
        assert.match(error.message, /no\/such\/program/);
        return true;
      });
      await assert.rejects(executor.attach("unknown"), Refused);
      await assert.rejects(executor.call("process/read", {} as never), InvalidParams);
      await assert.rejects(executor.writeFile("/tmp/x", Buffer.alloc(50 << 20)), RequestTooLarge);
      const terminal = await executor.start(["cat"], { tty: true });
      await assert.rejects(terminal.write("x".repeat(5000)), LineTooLong);
      await terminal.terminate();
      const silent = await executor.start(["sleep", "9"]);
      await assert.rejects(silent.write("x"), StdinUnavailable);
      await silent.terminate();
    });

    test("changes of files are events", async () => {
      const changed: string[] = [];
      const stop = executor.on("fs/changed", ({ changes }) => changed.push(...changes.map((each) => each.path)));
      await executor.call("fs/watch", { watchId: "w", path: `file://${folder.path}` });
      await executor.writeFile(`${folder.path}/watched`, "x");
      for (let left = 200; left && !changed.length; left--) await sleep(10);
      assert.ok(changed.some((path) => path.endsWith("watched")), String(changed));
      await executor.call("fs/unwatch", { watchId: "w" });
      stop();
    });

    test("a port of a process is reached", async () => {
      const script = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        + "c = s.accept()[0]; c.sendall(c.recv(9) + b' back')";
      const server = await executor.start(["python3", "-c", script]);
      const first = await server[Symbol.asyncIterator]().next();
      assert.ok(first.value?.kind === "output");
      const stream = await executor.openPort(Number(Buffer.from(first.value.data).toString()));
      await stream.write("there");
      await outputWith(stream, "there back");
      await server.exited();
    });
  });
}

describe("sessions", () => {
  let daemon: Daemon;
  before(async () => { daemon = await Daemon.start("unix"); });
  after(() => daemon.stop());

  test("a kept session is resumed, with the output of the time between", async () => {
    const first = await connect(daemon.url);
    const process = await first.start(["sh", "-c", "echo one; read line; echo $line; sleep 0.2; echo three"], { stdin: true, id: "p" });
    await outputWith(process, "one");
    const { lastSeq } = process;
    await process.write("two\n");
    await first.close({ keep: true });
    await sleep(300);

    const second = await connect(daemon.url, { sessionId: first.sessionId });
    assert.equal(await text(await second.attach("p", { afterSeq: lastSeq })), "two\nthree\n");
    await second.close();
    await assert.rejects(connect(daemon.url, { sessionId: first.sessionId }), SessionLost);
  });

  test("a process of another session is followed, also over a lost connection", async () => {
    const owner = await connect(daemon.url);
    const observer = await connect(daemon.url);
    const process = await owner.start(["sh", "-c", "echo begin; while read line; do echo $line; done"], { stdin: true });
    const followed = await observer.attach(process.id, { sessionId: owner.sessionId });
    await outputWith(followed, "begin");
    observer.cut();
    await process.write("after\n");
    await process.closeStdin();
    assert.equal(await text(followed), "after\n");
    assert.equal((await followed.exited()).exitCode, 0);
    assert.equal(observer.recoveries, 1);
    await Promise.all([owner.close(), observer.close()]);
  });

  test("the end of the client ends its processes, and the iteration of their output", async () => {
    const executor = await connect(daemon.url);
    const process = await executor.start(["sleep", "60"]);
    const reading = text(process).catch((error: unknown) => error);
    await executor.close();
    // The end of the session is reported as the end of the process.
    assert.ok(["", ExecutorClosed.name].includes(String((await reading as Error).name ?? await reading)));
    await assert.rejects(executor.run(["true"]), ExecutorClosed);
    await assert.rejects(connect(daemon.url, { sessionId: executor.sessionId }), SessionLost);
    await executor.close();
  });

  test("an answer that comes with the end of its connection is not lost", async () => {
    for (let left = 10; left; left--) {
      const executor = await connect(daemon.url);
      assert.deepEqual(await executor.call("session/end", {}), {});
      await executor.close();
    }
  });

  test("retention that drops unread output is a gap with its size", async () => {
    const small = await Daemon.start("unix", ["--retained-output-bytes", "100000"]);
    const executor = await connect(small.url);
    const process = await executor.start(["sh", "-c", "read go; seq 1 200000; sleep 60"], { stdin: true, id: "p" });
    await process.write("\n");
    await executor.close({ keep: true });
    await sleep(700);
    const second = await connect(small.url, { sessionId: executor.sessionId });
    const attached = await second.attach("p");
    const wanted = Array.from({ length: 200000 }, (_, index) => `${index + 1}\n`).join("");
    let size = 0;
    let lost = 0;
    for await (const piece of attached) {
      if (piece.kind === "gap") lost += piece.lostBytes!;
      else size += piece.data.length;
      if (size + lost >= wanted.length) break;
    }
    assert.ok(lost > 0);
    assert.equal(size + lost, wanted.length);
    await second.close();
    await small.stop();
  });
});

describe("connections that fail", () => {
  test("no daemon, another scheme and an unencrypted token are errors of their own", async () => {
    await assert.rejects(connect("unix:///tmp/no/such/socket"), DaemonNotRunning);
    await assert.rejects(connect("ws://127.0.0.1:1"), DaemonNotRunning);
    await assert.rejects(connect("http://127.0.0.1"), UnsupportedUrl);
    await assert.rejects(connect("ws://192.0.2.1:80", { token: "secret" }), InsecureToken);
    await assert.rejects(connect("stdio:", { command: ["/no/such/program"] }), ConnectionFailed);
  });

  test("a server that is none of ours is named as such", async () => {
    const server = createServer((_, response) => response.writeHead(404).end("not here")).listen(0, "127.0.0.1");
    await once(server, "listening");
    const url = `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
    await assert.rejects(connect(url), /answers 404: not here/);
    server.close();
  });

  test("a token is sent, and a wrong one is refused with the reason of the server", async () => {
    const digest = (await import("node:crypto")).createHash("sha256").update("long enough").digest("hex");
    const daemon = await Daemon.start("ws", ["--ws-auth", "capability-token", "--ws-token-sha256", digest]);
    await assert.rejects(connect(daemon.url, { token: "wrong one" }), (error: AccessDenied) => {
      assert.ok(error instanceof AccessDenied);
      assert.equal(error.status, 401);
      assert.match(error.message, /invalid websocket bearer token/);
      return true;
    });
    const executor = await connect(daemon.url, { token: () => "long enough" });
    assert.equal((await executor.run(["echo", "in"])).stdoutText, "in\n");
    await executor.close();
    await daemon.stop();
  });

  test("a daemon that has ended loses the session", async () => {
    const daemon = await Daemon.start("unix");
    const executor = await connect(daemon.url, { recoveryTimeout: 300 });
    const process = await executor.start(["sleep", "60"]);
    const reading = assert.rejects(async () => { await text(process); await process.exited(); executor.cut(); await executor.run(["true"]); }, SessionLost);
    await daemon.stop();
    await reading;
    await executor.close();
  });
});

test("the package is there for require, too, and for browsers", async () => {
  const require = createRequire(import.meta.url);
  const common = require("execclient") as typeof import("execclient");
  assert.equal(typeof common.connect, "function");
  assert.deepEqual(Object.keys(common).sort(), Object.keys(await import("execclient")).sort());
  assert.ok(require.resolve("execclient/browser").endsWith("/cjs/browser.js"));
});
