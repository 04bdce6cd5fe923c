// Write src/wire.ts, the types of the wire, from the JSON Schemas in schemas/ of the repository.
//
//   node tools/generate.mjs           write the file
//   node tools/generate.mjs --check   exit with 1 if the file differs from the schemas
//
// Only the keywords that these schemas use are known; another one is an error.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const SCHEMAS = fileURLToPath(new URL("../../../schemas/", import.meta.url));
const OUTPUT = fileURLToPath(new URL("../src/wire.ts", import.meta.url));

// Keywords that restrict a value in a way that its type does not show, or only describe it.
const IGNORED = new Set([
  "$schema", "$defs", "title", "description", "default", "discriminator", "format", "pattern", "minimum", "maximum",
  "minLength", "maxLength", "minItems", "maxItems", "contentEncoding", "x-extension", "x-positions", "required",
  "additionalProperties", "properties", "items", "type", "const", "enum", "anyOf", "oneOf", "$ref", "examples",
]);

const definitions = new Map();

function typeOf(schema, indent) {
  for (const keyword of Object.keys(schema)) {
    if (!IGNORED.has(keyword)) throw new Error(`the generator does not know the keyword ${keyword}`);
  }
  if (schema.$ref !== undefined) return schema.$ref.replace(/^#\/\$defs\//, "");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map((each) => typeOf(each, indent)))].join(" | ");
  if (Array.isArray(schema.type)) {
    return schema.type.map((type) => typeOf({ ...schema, type }, indent)).join(" | ");
  }
  switch (schema.type) {
    case "string": case "boolean": case "null": return schema.type;
    case "integer": case "number": return "number";
    case "array": {
      const item = typeOf(schema.items ?? {}, indent);
      return /[|{ ]/.test(item) ? `Array<${item}>` : `${item}[]`;
    }
    case "object": return objectOf(schema, indent);
    case undefined: return "unknown";
    default: throw new Error(`the generator does not know the type ${schema.type}`);
  }
}

function objectOf(schema, indent) {
  const members = Object.entries(schema.properties ?? {});
  const others = schema.additionalProperties;
  if (!members.length) {
    if (others && typeof others === "object") return `Record<string, ${typeOf(others, indent)}>`;
    return others === true ? "Record<string, unknown>" : "Record<string, never>";
  }
  const required = new Set(schema.required ?? []);
  const inner = `${indent}  `;
  const lines = members.map(([name, member]) => {
    const key = /^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name);
    return `${comment(member.description, inner)}${inner}${key}${required.has(name) ? "" : "?"}: ${typeOf(member, inner)};\n`;
  });
  return `{\n${lines.join("")}${indent}}`;
}

function comment(text, indent) {
  if (!text) return "";
  const lines = text.replaceAll("*/", "*\\/").split("\n").map((line) => `${indent} * ${line}`.trimEnd());
  return lines.length === 1
    ? `${indent}/** ${lines[0].trim().slice(2)} */\n`
    : `${indent}/**\n${lines.join("\n")}\n${indent} */\n`;
}

function declaration(name, schema) {
  const type = typeOf(schema, "");
  const head = comment(schema.description, "");
  return type.startsWith("{") ? `${head}export interface ${name} ${type}\n` : `${head}export type ${name} = ${type};\n`;
}

const pascal = (words) => words.split(/[./]/).map((word) => word[0].toUpperCase() + word.slice(1)).join("");

function schemasIn(folder, suffix) {
  return readdirSync(`${SCHEMAS}${folder}`).filter((name) => name.endsWith(suffix)).sort().map((name) => {
    const schema = JSON.parse(readFileSync(`${SCHEMAS}${folder}/${name}`, "utf8"));
    for (const [key, definition] of Object.entries(schema.$defs ?? {})) {
      const text = declaration(key, definition);
      if ((definitions.get(key) ?? text) !== text) throw new Error(`${key} differs between two schemas`);
      definitions.set(key, text);
    }
    return [name.slice(0, -suffix.length), schema];
  });
}

function calls(folder, table, description) {
  const members = [];
  const types = [];
  const results = new Map(schemasIn(folder, ".result.json"));
  for (const [name, params] of schemasIn(folder, ".params.json")) {
    const result = results.get(name);
    if (!result) throw new Error(`${name} has no schema of its result`);
    const base = pascal(name);
    types.push(declaration(`${base}Params`, params), declaration(`${base}Result`, result));
    members.push(`  "${name.replaceAll(".", "/").replace(/^rpc\//, "rpc.")}": { params: ${base}Params; result: ${base}Result };\n`);
  }
  return `${types.join("\n")}\n${comment(description, "")}export interface ${table} {\n${members.join("")}}\n`;
}

function events() {
  const members = [];
  const types = schemasIn("events", ".json").map(([name, schema]) => {
    members.push(`  "${name.replaceAll(".", "/")}": ${pascal(name)}Event;\n`);
    return declaration(`${pascal(name)}Event`, schema);
  });
  return `${types.join("\n")}\n/** The events that the server sends, by their names. */\nexport interface Events {\n${members.join("")}}\n`;
}

const body = [
  ...schemasIn(".", "error.json").map(([, schema]) => declaration("ErrorObject", schema)),
  calls(".", "Methods", "The requests of the client, by their methods."),
  calls("server-requests", "ServerMethods", "The requests of the server, by their methods."),
  events(),
];
const text = [
  "// Generated from schemas/ by tools/generate.mjs: do not edit. `npm run generate` writes it anew.\n",
  ...[...definitions].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, definition]) => definition),
  ...body,
].join("\n");

if (process.argv.includes("--check")) {
  if (readFileSync(OUTPUT, "utf8") !== text) {
    console.error("src/wire.ts differs from schemas/: run `npm run generate` in clients/typescript");
    process.exit(1);
  }
} else {
  writeFileSync(OUTPUT, text);
}
