/** Real daemons, and a proxy that cuts their connections. */

import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import type { AddressInfo, NetConnectOpts, Server, Socket } from "node:net";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/** The daemon's program, by default that of the repository. */
export const EXECSERVER = process.env["EXECSERVER"]
  ?? fileURLToPath(new URL("../../../.venv/bin/execserver", import.meta.url));

export type SocketTransport = "unix" | "ws";
export const SOCKETS: readonly SocketTransport[] = ["unix", "ws"];

/** What the tests with random cuts do, and how often. `EXECCLIENT_CUTS=1000` is the long form. */
export const CUTS = Number(process.env["EXECCLIENT_CUTS"] ?? "25");

/** A folder that is removed at the end; short, since a socket is in it. */
export function temporaryFolder(): { path: string; remove: () => void } {
  const path = mkdtempSync("/tmp/execclient-");
  return { path, remove: () => rmSync(path, { recursive: true, force: true, maxRetries: 5 }) };
}

/** The environment of a daemon that shares nothing with others. */
export function environment(folder: string): NodeJS.ProcessEnv {
  return {
    HOME: folder, XDG_STATE_HOME: `${folder}/state`, EXECSERVER_CONFIG: "", PATH: process.env["PATH"], LANG: "C",
    SHELL: "/bin/sh", TMPDIR: "/tmp",
  };
}

/** A daemon that listens on a socket. */
export class Daemon {
  private constructor(readonly url: string, private readonly process: ChildProcess, private readonly cleanUp: () => void) {}

  /** A daemon in an environment and a folder of its own, unless others are given. */
  static async start(
    transport: SocketTransport, flags: readonly string[] = [], place: { env?: NodeJS.ProcessEnv; cwd?: string } = {},
  ): Promise<Daemon> {
    const folder = temporaryFolder();
    const listen = transport === "ws" ? "ws://127.0.0.1:0" : `unix://${folder.path}/socket`;
    // A test that is killed leaves no daemon behind.
    const child = spawn("setpriv", ["--pdeathsig", "TERM", EXECSERVER, "serve", "--listen", listen, ...flags], {
      env: environment(folder.path), cwd: folder.path, ...place, stdio: ["ignore", "pipe", "ignore"],
    });
    const lines = createInterface(child.stdout);
    const [url] = (await once(lines, "line")) as [string];
    return new Daemon(url, child, folder.remove);
  }

  /** Kill the server, which the supervisor replaces. */
  killServer(): void {
    const pid = this.process.pid!;
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ");
    const server = children.find((each) => readFileSync(`/proc/${each}/cmdline`, "utf8").includes("execserver"));
    process.kill(Number(server), "SIGKILL");
  }

  async stop(): Promise<void> {
    if (this.process.exitCode === null) {
      this.process.kill("SIGTERM");
      await once(this.process, "exit");
    }
    this.cleanUp();
  }
}

/** Forwards connections to a daemon, and cuts each after a random number of bytes while `cutting`. */
export class CuttingProxy {
  cutting = false;
  cuts = 0;
  private readonly open = new Set<Socket>();

  private constructor(
    readonly url: string, private readonly server: Server, private readonly target: NetConnectOpts,
    private readonly cleanUp: () => void, private readonly random: () => number,
  ) {
    server.on("connection", (socket: Socket) => this.forward(socket));
  }

  static async start(url: string, seed: number): Promise<CuttingProxy> {
    const folder = temporaryFolder();
    const server = createServer();
    const isUnix = url.startsWith("unix:");
    server.listen(isUnix ? `${folder.path}/proxy` : { host: "127.0.0.1", port: 0 });
    await once(server, "listening");
    const here = isUnix ? `unix://${folder.path}/proxy` : `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const target = isUnix ? { path: url.slice("unix://".length) } : { host: "127.0.0.1", port: Number(new URL(url).port) };
    return new CuttingProxy(here, server, target, folder.remove, randomNumbers(seed));
  }

  /** Cut what is open. */
  cut(): void {
    for (const socket of this.open) socket.destroy();
  }

  async stop(): Promise<void> {
    this.cut();
    this.server.close();
    await once(this.server, "close");
    this.cleanUp();
  }

  private forward(client: Socket): void {
    const server = createConnection(this.target);
    const end = () => {
      client.destroy();
      server.destroy();
    };
    // Long enough for some handshakes to succeed, short enough to cut others.
    let left = this.cutting ? 200 + Math.floor(this.random() ** 3 * 60_000) : Infinity;
    for (const [from, to] of [[client, server], [server, client]] as const) {
      this.open.add(from);
      from.on("error", () => undefined);
      from.on("close", () => {
        this.open.delete(from);
        end();
      });
      from.on("data", (data: Buffer) => {
        if (data.length < left) {
          left -= data.length;
          to.write(data);
        } else if (left > 0) {
          const last = data.subarray(0, left);
          left = 0;
          this.cuts += 1;
          to.write(last, end);
        }
      });
    }
  }
}

/** Numbers from 0 to 1 that a seed determines. */
export function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
