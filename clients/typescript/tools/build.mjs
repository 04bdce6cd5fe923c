// Compile src/ twice, as modules of ECMAScript and of CommonJS, each with its types, into dist/.

import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const tsc = fileURLToPath(new URL("../node_modules/.bin/tsc", import.meta.url));

rmSync(`${root}dist`, { recursive: true, force: true });
for (const [config, folder, type] of [["tsconfig.json", "esm", "module"], ["tsconfig.cjs.json", "cjs", "commonjs"]]) {
  execFileSync(tsc, ["-p", config], { cwd: root, stdio: "inherit" });
  // What a file of this folder is, whatever package.json above says.
  writeFileSync(`${root}dist/${folder}/package.json`, `${JSON.stringify({ type })}\n`);
}
