/** What `npm pack` makes, unpacked in an empty folder: its files, its modules and its types. */

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import { environment, EXECSERVER, temporaryFolder } from "./daemons.js";

const here = (path: string) => fileURLToPath(new URL(`../${path}`, import.meta.url));

const PROGRAM = `
const main = async () => {
  const executor = await connect("stdio:", { command: [process.env.EXECSERVER, "serve", "--log-level", "warning"] });
  console.log((await executor.run(["echo", "from the package"])).stdoutText.trim());
  await executor.close();
};
void main();
`;

describe("the npm package", () => {
  const folder = temporaryFolder();
  let files: string[];
  before(() => {
    execFileSync("npm", ["pack", "--silent", "--pack-destination", folder.path], { cwd: here("") });
    const { version } = JSON.parse(readFileSync(here("package.json"), "utf8")) as { version: string };
    const archive = `${folder.path}/execclient-${version}.tgz`;
    files = execFileSync("tar", ["-tzf", archive], { encoding: "utf8" }).trim().split("\n");
    // What an installation makes, without a registry.
    mkdirSync(`${folder.path}/node_modules/execclient`, { recursive: true });
    execFileSync("tar", ["-xzf", archive, "--strip-components", "1", "-C", `${folder.path}/node_modules/execclient`]);
    for (const each of ["vscode-jsonrpc", "@types", "undici-types"]) {
      symlinkSync(here(`node_modules/${each}`), `${folder.path}/node_modules/${each}`);
    }
  });
  after(() => folder.remove());

  function run(...args: string[]): string {
    const env = { ...environment(folder.path), EXECSERVER };
    const { stdout, stderr, status } = spawnSync("node", args, { cwd: folder.path, env, encoding: "utf8" });
    assert.equal(status, 0, stderr);
    return stdout;
  }

  test("has compiled modules, their types, the README and the licence, and nothing else", () => {
    const modules = files.filter((name) => /^package\/dist\/(esm|cjs)\/\w+\.js$/.test(name));
    const wanted = modules.flatMap((name) => [name, name.replace(/js$/, "d.ts")]);
    for (const kind of ["esm", "cjs"]) wanted.push(`package/dist/${kind}/package.json`);
    for (const name of ["package.json", "README.md", "LICENSE"]) wanted.push(`package/${name}`);
    assert.deepEqual(new Set(files), new Set(wanted));
    for (const name of ["node", "browser", "wire"]) assert.ok(modules.includes(`package/dist/esm/${name}.js`));
  });

  test("needs vscode-jsonrpc only, which is under the MIT licence", () => {
    const { dependencies, peerDependencies } = JSON.parse(readFileSync(here("package.json"), "utf8")) as Record<string, object>;
    assert.deepEqual([Object.keys(dependencies!), peerDependencies], [["vscode-jsonrpc"], undefined]);
    const { license } = JSON.parse(readFileSync(here("node_modules/vscode-jsonrpc/package.json"), "utf8")) as { license: string };
    assert.equal(license, "MIT");
  });

  test("runs commands as an ECMAScript module and as CommonJS", () => {
    const esm = run("--input-type=module", "-e", `import { connect } from "execclient"; ${PROGRAM}`);
    const common = run("--input-type=commonjs", "-e", `const { connect } = require("execclient"); ${PROGRAM}`);
    assert.deepEqual([esm, common], ["from the package\n", "from the package\n"]);
  });

  test("has types for both kinds of modules, and for pages without those of Node", () => {
    const use = 'export const run = async (url: string): Promise<number> => (await (await connect(url)).run(["true"])).exitCode;\n'
      + '// @ts-expect-error: the types are there, so that this is an error\nvoid connect(1);\n';
    // The types of vscode-jsonrpc/browser name those of web workers, which a page does not have.
    const page = { module: "esnext", moduleResolution: "bundler", lib: ["es2022", "esnext.disposable", "dom"], skipLibCheck: true };
    const kinds = {
      module: { module: "nodenext", types: ["node"], entry: "execclient" },
      commonjs: { module: "nodenext", types: ["node"], entry: "execclient" },
      page: { ...page, types: [], entry: "execclient/browser" },
    };
    for (const [kind, { entry, ...options }] of Object.entries(kinds)) {
      const place = `${folder.path}/${kind}`;
      mkdirSync(place);
      writeFileSync(`${place}/package.json`, JSON.stringify({ type: kind === "commonjs" ? "commonjs" : "module" }));
      writeFileSync(`${place}/use.ts`, `import { connect } from "${entry}";\n${use}`);
      const compilerOptions = { target: "es2022", strict: true, noEmit: true, skipLibCheck: false, ...options };
      writeFileSync(`${place}/tsconfig.json`, JSON.stringify({ compilerOptions }));
      const { status, stdout } = spawnSync(here("node_modules/.bin/tsc"), ["-p", place], { encoding: "utf8" });
      assert.equal(status, 0, `${kind}: ${stdout}`);
    }
  });
});
