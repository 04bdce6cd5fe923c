/** The client in headless Chromium, bundled as an application of the web bundles it. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, request as httpRequest } from "node:http";
import type { IncomingMessage, Server } from "node:http";
import { createConnection } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

import { Daemon, temporaryFolder } from "./daemons.js";

const TOKEN = "of the daemon, which no page knows";

/**
 * The server of a page: its own page may open a WebSocket to a daemon, from which it removes the `Origin`, and to which
 * it adds the token. A real one asks the user to sign in, too.
 */
class PageServer {
  readonly results: Promise<Record<string, unknown>>;
  private readonly tunnels = new Set<Socket>();
  private readonly server: Server;

  constructor(script: string, private readonly daemon: URL) {
    let give: (results: Record<string, unknown>) => void;
    this.results = new Promise((resolve) => {
      give = resolve;
    });
    this.server = createServer(async (request, response) => {
      if (request.url === "/cut") {
        for (const tunnel of this.tunnels) tunnel.destroy();
      } else if (request.url === "/result") {
        request.setEncoding("utf8");
        give(JSON.parse((await request.toArray()).join("")) as Record<string, unknown>);
      } else if (request.url === "/page.js") {
        response.setHeader("Content-Type", "text/javascript");
        response.write(script);
      } else {
        response.setHeader("Content-Type", "text/html");
        response.write(`<!doctype html><script type="module" src="/page.js"></script>`);
      }
      response.end();
    });
    this.server.on("upgrade", (request: IncomingMessage, socket: Socket) => this.forward(request, socket));
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  async listen(): Promise<this> {
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    return this;
  }

  async close(): Promise<void> {
    for (const tunnel of this.tunnels) tunnel.destroy();
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }

  private forward(request: IncomingMessage, page: Socket): void {
    if (request.headers.origin !== this.origin) {
      page.end("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
      return;
    }
    const { origin: _, host: __, cookie: ___, ...headers } = request.headers;
    const daemon = createConnection(Number(this.daemon.port), this.daemon.hostname);
    const lines = Object.entries({ ...headers, host: this.daemon.host, authorization: `Bearer ${TOKEN}` });
    daemon.write(`GET / HTTP/1.1\r\n${lines.map(([name, value]) => `${name}: ${String(value)}\r\n`).join("")}\r\n`);
    for (const [from, to] of [[page, daemon], [daemon, page]] as const) {
      this.tunnels.add(from);
      from.on("error", () => undefined);
      from.on("close", () => {
        this.tunnels.delete(from);
        to.destroy();
      });
      from.pipe(to);
    }
  }
}

describe("in a browser", () => {
  const folder = temporaryFolder();
  let daemon: Daemon;
  let script: string;
  const servers: PageServer[] = [];
  before(async () => {
    const digest = createHash("sha256").update(TOKEN).digest("hex");
    daemon = await Daemon.start("ws", ["--ws-auth", "capability-token", "--ws-token-sha256", digest]);
    const bundled = await build({
      entryPoints: [fileURLToPath(new URL("browser_page.js", import.meta.url))],
      bundle: true, format: "esm", platform: "browser", target: "es2022", write: false, logLevel: "error",
    });
    script = bundled.outputFiles[0]!.text;
  });
  after(async () => {
    await Promise.all(servers.map((each) => each.close()));
    await daemon.stop();
    folder.remove();
  });

  async function servePage(): Promise<PageServer> {
    const server = new PageServer(script, new URL(daemon.url));
    servers.push(server);
    return server.listen();
  }

  /** The status with which the daemon answers an upgrade that has its token. */
  async function upgrade(headers: Record<string, string>): Promise<number> {
    const request = httpRequest(daemon.url.replace("ws", "http"), {
      agent: false,
      headers: {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13", "Authorization": `Bearer ${TOKEN}`, ...headers,
      },
    });
    return new Promise((resolve, reject) => {
      const answered = (response: IncomingMessage) => {
        response.socket.destroy();
        resolve(response.statusCode!);
      };
      request.on("response", answered).on("upgrade", answered).on("error", reject).end();
    });
  }

  /** What the page reports, that a server serves, and that connects to a URL. */
  async function visit(page: PageServer, executor: string): Promise<Record<string, unknown>> {
    const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
    const window = `${page.origin}/?executor=${encodeURIComponent(executor)}`;
    // Its processes are a group, which ends as a whole.
    const chromium = spawn("chromium", [...flags, `--user-data-dir=${folder.path}/profile`, window], {
      detached: true, stdio: "ignore", env: { ...process.env, HOME: folder.path },
    });
    try {
      return await page.results;
    } finally {
      process.kill(-chromium.pid!, "SIGKILL");
      await once(chromium, "close");
    }
  }

  test("commands, terminals and recovery work through the server of the page", { timeout: 90_000 }, async () => {
    const page = await servePage();
    const { survived, ...others } = await visit(page, page.origin.replace("http", "ws"));
    assert.deepEqual(others, { exitCode: 0, bytes: 3 << 20, terminal: "33 77\r\ngot grüße\r\n" });
    const { whole, recoveries } = survived as { whole: boolean; recoveries: number };
    assert.equal(whole, true);
    assert.ok(recoveries > 0);
  });

  test("a daemon refuses a page, and the server of a page refuses the page of another one", { timeout: 90_000 }, async () => {
    assert.deepEqual([await upgrade({}), await upgrade({ Origin: daemon.url.replace("ws", "http") })], [101, 403]);
    const page = await servePage();
    assert.deepEqual(await visit(page, daemon.url), { code: "connection_failed" });
    const other = await servePage();
    assert.deepEqual(await visit(other, page.origin.replace("http", "ws")), { code: "connection_failed" });
  });
});
