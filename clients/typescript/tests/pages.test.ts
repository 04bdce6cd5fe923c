/** What README.md and the API page say. */

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Daemon } from "./daemons.js";

const here = (path: string) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const README = readFileSync(here("README.md"), "utf8");
const PAGE = readFileSync(here("../../docs/reference/typescript.md"), "utf8");

/** The compiled examples of a text. */
function compiled(name: string, text: string): string[] {
  const examples = [...text.matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code!);
  assert.ok(examples.length > 0);
  const folder = here(`build/pages/${name}`);
  mkdirSync(folder, { recursive: true });
  examples.forEach((code, index) => writeFileSync(`${folder}/example${index}.ts`, code));
  writeFileSync(`${folder}/tsconfig.json`, JSON.stringify({
    extends: "../../../tsconfig.json", compilerOptions: { rootDir: ".", outDir: ".", declaration: false }, include: ["*.ts"], exclude: [],
  }));
  execFileSync(here("node_modules/.bin/tsc"), ["-p", folder], { stdio: "pipe" });
  return examples.map((_, index) => `${folder}/example${index}.js`);
}

test("the example of the README prints the output and the exit code", async () => {
  const daemon = await Daemon.start("unix");
  const url = "unix:///run/user/1000/execserver/execserver.sock";
  assert.ok(README.includes(url));
  const [example] = compiled("readme", README.replace(url, daemon.url));
  const done = spawnSync("node", [example!], { encoding: "utf8" });
  assert.equal(done.stdout, "building\ndone\nexit code 0\n", done.stderr);
  await daemon.stop();
});

test("the examples of the API page compile", () => {
  assert.equal(compiled("reference", PAGE).length, 3);
});

test("the API page names all that the package exports, and each error with its code", async () => {
  const names = Object.keys(await import("execclient"));
  const types = readFileSync(here("dist/esm/api.d.ts"), "utf8").matchAll(/export (?:type )?\{([^}]*)\}/g);
  names.push(...[...types].flatMap(([, list]) => list!.split(",").map((each) => each.replace(/^\s*type /, "").trim())));
  const missing = names.filter((name) => !new RegExp(`\\b${name}\\b`).test(PAGE));
  assert.deepEqual(missing, []);
  const source = readFileSync(here("src/errors.ts"), "utf8");
  for (const [, code] of source.matchAll(/override readonly code: string = "(\w+)"/g)) assert.ok(PAGE.includes(`\`${code}\``), code);
});
