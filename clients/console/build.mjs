// Build the page into the folder of the Python package that serves it: node build.mjs FOLDER
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { build } from 'esbuild'

const folder = process.argv[2]
if (!folder) throw new Error('give the folder of the built page')

rmSync(folder, { recursive: true, force: true })
mkdirSync(folder, { recursive: true })
await build({
  entryPoints: ['src/main.ts', 'src/style.css'].map((file) => ({ in: file, out: 'console' })),
  outdir: folder,
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  legalComments: 'none', // all licenses are in licenses.txt
  logLevel: 'warning',
})
for (const name of ['index.html', 'favicon.svg']) copyFileSync(join('static', name), join(folder, name))

const packages = Object.keys(JSON.parse(readFileSync('package.json', 'utf8')).dependencies)
const notes = packages.map((name) => {
  const { version } = JSON.parse(readFileSync(join('node_modules', name, 'package.json'), 'utf8'))
  return `${name} ${version}\n\n${readFileSync(join('node_modules', name, 'LICENSE'), 'utf8')}`
})
writeFileSync(join(folder, 'licenses.txt'), notes.join('\n\n'))
