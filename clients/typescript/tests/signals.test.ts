/** What an `AbortSignal` ends. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { connect } from "execclient";
import type { Executor } from "execclient";

import { Daemon, temporaryFolder } from "./daemons.js";

describe("a signal", () => {
  const folder = temporaryFolder();
  let daemon: Daemon;
  let executor: Executor;
  before(async () => {
    daemon = await Daemon.start("unix");
    executor = await connect(daemon.url);
  });
  after(async () => {
    await executor.close();
    await daemon.stop();
    folder.remove();
  });

  test("ends the wait for a response, and no other one", async () => {
    const process = await executor.start(["sleep", "60"]);
    const controller = new AbortController();
    const params = { processId: process.id, waitMs: 30_000 };
    const abandoned = executor.call("process/read", params, { signal: controller.signal });
    const other = executor.call("process/read", params);
    controller.abort(new Error("enough"));
    await assert.rejects(abandoned, /enough/);
    await process.terminate();
    assert.equal((await other).exited, true);
    await assert.rejects(executor.call("environment/status", {}, { signal: AbortSignal.abort() }), { name: "AbortError" });
  });

  test("ends a wait for output or for the exit, and no output is lost by that", async () => {
    const process = await executor.start(["sh", "-c", "read line; echo got $line"], { stdin: true });
    await assert.rejects(process.output({ signal: AbortSignal.timeout(50) }).next(), { name: "TimeoutError" });
    await assert.rejects(process.exited({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    await process.write("it\n");
    const first = await process[Symbol.asyncIterator]().next();
    assert.ok(first.value?.kind === "output");
    assert.equal(Buffer.from(first.value.data).toString(), "got it\n");
  });

  test("ends a write that the process does not read, and lets later ones follow", async () => {
    const script = "trap : USR1; echo ready; sleep 60 & wait; kill $!; exec wc -c";
    const process = await executor.start(["sh", "-c", script], { stdin: true });
    const output = process[Symbol.asyncIterator]();
    await output.next();
    const megabytes = Buffer.alloc(80 << 20);
    await assert.rejects(process.write(megabytes, { signal: AbortSignal.timeout(2000) }), { name: "TimeoutError" });
    const late = process.write("more").then(() => process.closeStdin());
    await process.signal("SIGUSR1", "leader");
    await late;
    const counted = await output.next();
    assert.ok(counted.value?.kind === "output");
    const bytes = Number(Buffer.from(counted.value.data).toString());
    assert.ok(bytes < megabytes.length, String(bytes));
    assert.equal(bytes % (1 << 20), 4, "whole pieces of the first write, then the second");
  });

  test("kills the process of a run", async () => {
    const file = `${folder.path}/survived`;
    const controller = new AbortController();
    const running = executor.run(["sh", "-c", `sleep 1; touch ${file}`], { id: "run", input: "x", signal: controller.signal });
    setTimeout(() => controller.abort(new Error("enough")), 100);
    await assert.rejects(running, /enough/);
    const { exited, cause } = await executor.call("process/read", { processId: "run", waitMs: 5000 });
    assert.deepEqual([exited, cause], [true, "terminated"]);
    assert.equal(existsSync(file), false);
  });

  test("ends a connect that no server answers", async () => {
    const silent = createServer((socket) => socket.resume()).listen(`${folder.path}/silent`);
    await once(silent, "listening");
    const begin = performance.now();
    const connecting = connect(`unix://${folder.path}/silent`, { signal: AbortSignal.timeout(100) });
    await assert.rejects(connecting, { name: "TimeoutError" });
    silent.close();
    await once(silent, "close"); // after the end of all connections
    assert.ok(performance.now() - begin < 5000);
  });

  test("keeps a call that waits for a recovery from being sent after it", async () => {
    const controller = new AbortController();
    const path = `file://${folder.path}/late`;
    daemon.killServer();
    executor.cut();
    const writing = executor.call("fs/writeFile", { path, dataBase64: "" }, { signal: controller.signal });
    controller.abort();
    await assert.rejects(writing, { name: "AbortError" });
    await executor.call("environment/status", {});
    await sleep(50);
    assert.equal(existsSync(`${folder.path}/late`), false);
  });
});
