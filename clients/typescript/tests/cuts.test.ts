/** Connections that are cut at random, and a server that is killed: nothing is lost, and nothing comes twice. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { connect } from "execclient";
import type { Process } from "execclient";

import { CUTS, CuttingProxy, Daemon, SOCKETS } from "./daemons.js";

async function lines(process: Process, each: (line: string) => void): Promise<void> {
  let rest = "";
  for await (const piece of process) {
    assert.equal(piece.kind, "output");
    if (piece.kind !== "output") continue;
    const parts = (rest + Buffer.from(piece.data).toString()).split("\n");
    rest = parts.pop()!;
    parts.forEach(each);
  }
  assert.equal(rest, "");
}

for (const transport of SOCKETS) {
  describe(`over ${transport}`, () => {
    let daemon: Daemon;
    let proxy: CuttingProxy;
    before(async () => {
      daemon = await Daemon.start(transport);
      proxy = await CuttingProxy.start(daemon.url, 20261127);
    });
    after(async () => {
      await proxy.stop();
      await daemon.stop();
    });

    test(`${CUTS} random cuts lose and double neither input nor output`, async () => {
      const executor = await connect(proxy.url);
      const echo = await executor.start(["cat"], { stdin: true });
      let expected = 1;
      const reading = lines(echo, (line) => assert.equal(line, `${expected++} ${"x".repeat(Number(line.split(" ")[0]) % 997)}`));
      proxy.cutting = true;
      proxy.cut();
      let sent = 0;
      while (proxy.cuts < CUTS) {
        sent += 1;
        // Several at a time, so that a cut may come with any number of unanswered writes.
        const written = echo.write(`${sent} ${"x".repeat(sent % 997)}\n`);
        if (sent % 8 === 0) await written;
        else written.catch(() => undefined);
        // Starts are repeated, too.
        if (sent % 50 === 0) assert.equal((await executor.run(["echo", `${sent}`])).stdoutText, `${sent}\n`);
      }
      proxy.cutting = false;
      await echo.closeStdin();
      await reading;
      assert.equal(expected - 1, sent);
      assert.ok(executor.recoveries > 0);
      await executor.close();
    });

    test("a killed server loses and doubles nothing", async () => {
      const executor = await connect(daemon.url);
      const counter = await executor.start(["sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; [ $((i%100)) = 0 ] && sleep 0.02; done; exit 7"]);
      let expected = 1;
      const reading = lines(counter, (line) => assert.equal(line, `${expected++}`));
      for (let kills = 0; kills < 2; kills++) {
        await sleep(150);
        daemon.killServer();
        await executor.call("environment/status", {});
      }
      await reading;
      assert.equal(expected, 3001);
      assert.equal((await counter.exited()).exitCode, 7);
      assert.ok(executor.recoveries >= 2);
      await executor.close();
    });
  });
}
