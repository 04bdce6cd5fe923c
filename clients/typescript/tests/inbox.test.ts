/** The events of a process, without a connection. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Inbox } from "../dist/esm/inbox.js";
import type { Piece } from "../dist/esm/inbox.js";
import type { ProcessReadResult } from "../dist/esm/wire.js";

type Event = Parameters<Inbox["push"]>;

const base64 = (text: string) => Buffer.from(text).toString("base64");
const output = (seq: number, text: string, others: object = {}): Event =>
  ["process/output", { processId: "p", seq, stream: "stdout", chunk: base64(text), ...others }];
const exited = (seq: number): Event => ["process/exited", { processId: "p", seq, exitCode: 0, sandboxDenied: false }];
const closed = (seq: number): Event => ["process/closed", { processId: "p", seq }];

function page(chunks: [number, string][], nextSeq: number, others: Partial<ProcessReadResult> = {}): ProcessReadResult {
  return {
    chunks: chunks.map(([seq, text]) => ({ seq, stream: "stdout" as const, chunk: base64(text) })),
    nextSeq, exited: false, exitCode: null, closed: false, failure: null, sandboxDenied: false, ...others,
  };
}

async function all(inbox: Inbox): Promise<string[]> {
  const texts: string[] = [];
  for (let piece: Piece | undefined; (piece = await inbox.take()); ) {
    texts.push(piece.kind === "gap" ? `gap ${piece.lostBytes}` : Buffer.from(piece.data).toString());
  }
  return texts;
}

function pushAll(inbox: Inbox, ...events: Event[]): void {
  for (const event of events) inbox.push(...event);
}

const inboxOf = (limit = Infinity) => new Inbox("p", undefined, limit, 0);

test("an event that comes twice is delivered once", async () => {
  const inbox = inboxOf();
  pushAll(inbox, output(1, "a"), output(1, "a"), output(2, "b"), exited(3), closed(4));
  assert.deepEqual(await all(inbox), ["a", "b"]);
  assert.equal(inbox.exit?.exitCode, 0);
});

test("events after a lost connection wait for the page with those before them", async () => {
  const inbox = inboxOf();
  inbox.push(...output(1, "a"));
  inbox.hold();
  inbox.push(...output(4, "d"));
  inbox.push(...closed(6));
  assert.equal(inbox.lastSeq, 1);
  inbox.fill(page([[2, "b"], [3, "c"], [4, "d"]], 6, { exited: true, exitCode: 7 }));
  inbox.release();
  assert.deepEqual(await all(inbox), ["a", "b", "c", "d"]);
  assert.equal(inbox.exit?.exitCode, 7);
});

test("the number of the exit within a page is no gap", async () => {
  const inbox = inboxOf();
  inbox.hold();
  inbox.fill(page([[1, "a"], [3, "b"]], 5, { exited: true, exitCode: 0, closed: true }));
  inbox.release();
  assert.deepEqual(await all(inbox), ["a", "b"]);
});

test("lost output is a gap with its size at its place", async () => {
  const inbox = inboxOf();
  inbox.push(...output(1, "a"));
  inbox.push(...output(2, ""));
  inbox.push(...output(3, "c", { lostBytes: 12, firstSeq: 3 }));
  inbox.hold();
  inbox.fill(page([[9, "i"]], 11, { lostBytes: 34, firstSeq: 9, exited: true, exitCode: 0, closed: true }));
  inbox.release();
  assert.deepEqual(await all(inbox), ["a", "gap 12", "c", "gap 34", "i"]);
});

test("a number that is left out without a statement is a gap of unknown size", async () => {
  const inbox = inboxOf();
  pushAll(inbox, output(1, "a"), output(5, "e"), exited(6), closed(7));
  assert.deepEqual(await all(inbox), ["a", "gap undefined", "e"]);
});

test("beyond the limit the oldest waiting output becomes one gap", async () => {
  const inbox = inboxOf(4);
  for (let seq = 1; seq <= 5; seq++) inbox.push(...output(seq, "xy"));
  inbox.push(...exited(6));
  inbox.push(...closed(7));
  assert.deepEqual(await all(inbox), ["gap 6", "xy", "xy"]);
});

test("many pieces are taken in their order, also while others are added", async () => {
  const inbox = inboxOf();
  const taken: string[] = [];
  for (let seq = 1; seq <= 5000; seq++) {
    inbox.push(...output(seq, `${seq} `));
    if (seq % 3 === 0) taken.push(Buffer.from(((await inbox.take()) as { data: Uint8Array }).data).toString());
  }
  inbox.push(...exited(5001));
  inbox.push(...closed(5002));
  taken.push(...(await all(inbox)));
  assert.equal(taken.join(""), Array.from({ length: 5000 }, (_, index) => `${index + 1} `).join(""));
});
