/** Paths and bytes in the form of the wire. */

import assert from "node:assert/strict";
import { test } from "node:test";

import * as withBuffer from "../dist/esm/bytes.js";

/** The module as a browser has it. */
async function withoutBuffer(): Promise<typeof withBuffer> {
  const { Buffer: NodeBuffer } = globalThis;
  Object.assign(globalThis, { Buffer: undefined });
  try {
    return (await import(`${"../dist/esm/bytes.js"}?browser`)) as typeof withBuffer;
  } finally {
    globalThis.Buffer = NodeBuffer;
  }
}

test("bytes survive base64, in Node and in a browser", async () => {
  const bytes = Uint8Array.from({ length: 100_001 }, (_, index) => (index * 7919) % 256);
  for (const module of [withBuffer, await withoutBuffer()]) {
    assert.equal(module.toBase64(bytes), Buffer.from(bytes).toString("base64"));
    assert.deepEqual(module.fromBase64(module.toBase64(bytes)), bytes);
  }
});

test("a path survives its URI", () => {
  for (const path of ["/", "/a b/c#d?e%f", "/größe/日本", "/a\nb"]) {
    const uri = withBuffer.pathUri(path);
    assert.match(uri, /^file:\/\/\/[\x21-\x7e]*$/);
    assert.equal(withBuffer.uriPath(uri), path);
  }
});

test("a name that is not UTF-8 is shown with replacements", () => {
  assert.equal(withBuffer.uriPath("file:///a%FFb%20c"), "/a\ufffdb c");
});

test("a relative path is refused", () => {
  assert.throws(() => withBuffer.pathUri("a/b"), TypeError);
});
