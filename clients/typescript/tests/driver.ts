/**
 * A server of the Codex dialect over stdio that carries out each request by this client, so that the conformance cases of
 * the project run through it:
 *
 *     node build/driver.js TRANSPORT serve --listen stdio [FLAGS]
 *
 * starts a daemon with the flags, and connects to it over the transport: `stdio`, `unix` or `ws`. The handshake and the
 * framing are the client's own here, so cases about malformed messages and about the order of a handshake do not apply.
 */

import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { CallFailed } from "execclient";

import { Inbox } from "../dist/esm/inbox.js";
import { targetOf } from "../dist/esm/node_target.js";
import { Session } from "../dist/esm/session.js";
import type { ProcessStartParams } from "../dist/esm/wire.js";
import { Daemon, EXECSERVER } from "./daemons.js";

interface Message {
  id?: number | string;
  method?: string;
  params?: Record<string, unknown> | null;
  result?: unknown;
  error?: { code: number; message: string };
}

/** Errors whose names the Codex dialect has, too, on a connection with extensions (X15). */
const EXTENDED = /^(pattern_refused|glob_refused|unknown_cursor|search_\w+|unknown_watch)$/;

const transport = process.argv[2];
const { values, tokens } = parseArgs({
  args: process.argv.slice(4), options: { listen: { type: "string" } }, strict: false, tokens: true,
});
if (values["listen"] !== "stdio") throw new Error("the driver serves --listen stdio");
const listening = tokens.find((token) => token.kind === "option" && token.name === "listen")!.index;
const flags = process.argv.slice(4).filter((_, index) => index !== listening && index !== listening + 1);

let daemon: Daemon | undefined;
let session: Session | undefined;
let isExtended = false;
const started = new Set<unknown>();
const questions = new Map<number, (answer: Message) => void>();

const send = (message: object) => process.stdout.write(`${JSON.stringify(message)}\n`);

function fault(error: unknown): object {
  for (let each = error; each instanceof Error; each = each.cause) {
    if (!(each instanceof CallFailed)) continue;
    const { wireCode: code, wireMessage: message, data } = each;
    const isSent = data !== undefined && (data.reason !== undefined || EXTENDED.test(data.code));
    return { code, message, ...(isExtended && isSent && { data }) };
  }
  return { code: -32603, message: `the driver: ${String(error)}` };
}

async function open(params: Record<string, unknown>): Promise<unknown> {
  if (session) throw new Error("this driver opens one session");
  isExtended = params["extensions"] !== undefined;
  if (transport === "unix" || transport === "ws") daemon ??= await Daemon.start(transport, flags, { env: process.env, cwd: process.cwd() });
  const target = targetOf(daemon?.url ?? "stdio:", { command: [EXECSERVER, "serve", ...flags] });
  const opened = new Session(target, {
    clientName: String(params["clientName"]),
    callMilliseconds: Infinity,
    recoveryMilliseconds: undefined,
    sessionId: (params["resumeSessionId"] as string | null | undefined) ?? undefined,
    extensions: isExtended,
    onEvent: (method, event) => send({ method, params: event }),
    onRequest: (method, question) => new Promise((resolve, reject) => {
      const id = questions.size + 1;
      questions.set(id, ({ result, error }) => (error ? reject(new Error(error.message)) : resolve(result)));
      send({ id, method, params: question });
    }),
  });
  const result = await opened.open();
  session = opened;
  return result;
}

/** Start a process whose events go through an inbox of the client. */
async function start(current: Session, params: ProcessStartParams): Promise<unknown> {
  const { processId } = params;
  started.add(processId);
  const inbox = new Inbox(processId, undefined, Infinity, 0, (method, event) => send({ method, params: event }));
  try {
    return await current.start(inbox, "process/start", params, params.ifExists === "attach");
  } catch (error) {
    started.delete(processId);
    throw error;
  }
}

async function carryOut({ method, params }: Message): Promise<unknown> {
  if (method === "initialize") return open(params ?? {});
  if (!session) throw new Error("the client sends initialize first");
  if (method === "process/start" && typeof params?.["processId"] === "string" && !started.has(params["processId"])) {
    return start(session, params as unknown as ProcessStartParams);
  }
  return session.call(method!, params ?? undefined);
}

let earlier: Promise<unknown> = Promise.resolve();
const lines = createInterface(process.stdin);
lines.on("line", (line) => {
  if (line.trim() === "") return;
  let message: Message;
  try {
    message = JSON.parse(line) as Message;
  } catch {
    lines.close(); // the framing is not what is tested
    return;
  }
  if (message.method === undefined) {
    questions.get(message.id as number)?.(message);
  } else if (message.id !== undefined) {
    const { id } = message;
    const done = carryOut.bind(undefined, message);
    // Requests are sent in their order, and after the handshake at once.
    const answered = session ? done() : earlier.then(done, done);
    if (!session) earlier = answered;
    answered.then((result) => send({ id, result }), (error: unknown) => send({ id, error: fault(error) }));
  }
});
lines.on("close", () => {
  void (async () => {
    await earlier.catch(() => undefined);
    await session?.close(false);
    await daemon?.stop();
    process.stdin.destroy();
  })();
});
process.on("SIGTERM", () => lines.close());
