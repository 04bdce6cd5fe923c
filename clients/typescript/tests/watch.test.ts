/** Watches of files, over cut connections and a killed server. */

import assert from "node:assert/strict";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { connect, NotFound } from "execclient";
import type { Change, Watch } from "execclient";

import { CuttingProxy, Daemon, temporaryFolder } from "./daemons.js";

/** The changes until one that is wanted. */
async function changesUntil(watch: Watch, wanted: (change: Change) => boolean): Promise<Change[]> {
  const seen: Change[] = [];
  for await (const change of watch) {
    seen.push(change);
    if (wanted(change)) return seen;
  }
  assert.fail(`the watch ended: ${watch.ended} ${watch.message}`);
}

const isCreated = (path: string) => (change: Change) => change.kind === "created" && change.path === path;

describe("a watch", () => {
  const folder = temporaryFolder();
  let daemon: Daemon;
  let proxy: CuttingProxy;
  before(async () => {
    daemon = await Daemon.start("unix");
    proxy = await CuttingProxy.start(daemon.url, 29);
  });
  after(async () => {
    await proxy.stop();
    await daemon.stop();
    folder.remove();
  });

  function newRoot(name: string): string {
    const root = `${folder.path}/${name}`;
    mkdirSync(root);
    return root;
  }

  test("has each change once and in order, over connections that are cut", async () => {
    const root = newRoot("cut");
    const executor = await connect(proxy.url);
    const watch = await executor.watch(root);
    const reading = changesUntil(watch, isCreated(`${root}/last one`));
    for (let number = 0; number < 400; number++) {
      writeFileSync(`${root}/${number}`, "");
      if (number % 40 === 20) proxy.cut();
      if (number % 10 === 0) await sleep(5);
    }
    writeFileSync(`${root}/last one`, "");
    const created = (await reading).filter(({ kind }) => kind === "created").map(({ path }) => path);
    assert.deepEqual(created.slice(0, -1), Array.from({ length: 400 }, (_, number) => `${root}/${number}`));
    assert.ok(executor.recoveries > 0);
    await executor.close();
  });

  test("has a gap for what happened while the server was replaced, and goes on", async () => {
    const root = newRoot("killed");
    const executor = await connect(daemon.url);
    const watch = await executor.watch(root);
    writeFileSync(`${root}/before`, "");
    await changesUntil(watch, isCreated(`${root}/before`));
    const reading = changesUntil(watch, ({ kind }) => kind === "gap");
    daemon.killServer();
    assert.deepEqual((await reading).at(-1), { kind: "gap", path: root, isDirectory: true });
    writeFileSync(`${root}/after`, "");
    await changesUntil(watch, isCreated(`${root}/after`));
    await executor.close();
  });

  test("keeps thousands of changes at the daemon until the caller takes them", async () => {
    const root = newRoot("many");
    const executor = await connect(daemon.url);
    await using watch = await executor.watch(root);
    for (let number = 0; number < 6000; number++) writeFileSync(`${root}/${number}`, "");
    await sleep(300);
    writeFileSync(`${root}/last`, "");
    const seen = await changesUntil(watch, isCreated(`${root}/last`));
    assert.equal(seen.filter(({ kind }) => kind === "created").length, 6001);
    assert.equal(seen.filter(({ kind }) => kind === "gap").length, 0);
    await executor.close();
  });

  test("ends with its reason when its root is removed, and by close", async () => {
    const executor = await connect(daemon.url);
    const root = newRoot("removed");
    const removed = await executor.watch(root, { recursive: false });
    assert.equal(removed.mode, "inotify");
    rmSync(root, { recursive: true });
    for await (const change of removed) assert.equal(change.kind, "removed");
    assert.equal(removed.ended, "rootRemoved");

    const closed = await executor.watch(newRoot("closed"));
    const reading = closed[Symbol.asyncIterator]().next();
    await closed.close();
    assert.equal((await reading).done, true);
    assert.equal(closed.ended, undefined);

    await assert.rejects(executor.watch(`${folder.path}/missing`), NotFound);
    await executor.close();
  });

  test("gives a wait up at a signal, and loses no change by that", async () => {
    const root = newRoot("signal");
    const executor = await connect(daemon.url);
    const watch = await executor.watch(root);
    const controller = new AbortController();
    const waiting = watch.changes(controller).next();
    controller.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
    writeFileSync(`${root}/file`, "");
    assert.equal((await changesUntil(watch, isCreated(`${root}/file`))).length, 1);
    await executor.close();
  });
});
