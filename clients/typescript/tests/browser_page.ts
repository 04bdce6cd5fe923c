/** What the page of `browser.test.ts` does, in a browser: its results are sent to its server. */

import { connect, ExecServerError } from "execclient/browser";
import type { Executor, Process } from "execclient/browser";

const LINES = 3000;

/** The output; `each` is called with all of it that has arrived. */
async function text(process: Process, each: (text: string) => void = () => undefined): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const piece of process) {
    text += piece.kind === "gap" ? "(gap)" : decoder.decode(piece.data, { stream: true });
    each(text);
  }
  return text;
}

/** Lines of a process while the server of the page cuts each connection. */
async function survives(executor: Executor): Promise<{ whole: boolean; recoveries: number }> {
  const script = `i=0; while [ $i -lt ${LINES} ]; do i=$((i+1)); echo $i; [ $((i % 100)) = 0 ] && sleep 0.03; done`;
  const counter = await executor.start(["sh", "-c", script]);
  const reading = text(counter);
  for (let cuts = 0; cuts < 4; cuts++) await fetch("/cut", { method: "POST" });
  const wanted = Array.from({ length: LINES }, (_, index) => `${index + 1}\n`).join("");
  return { whole: (await reading) === wanted, recoveries: executor.recoveries };
}

async function terminal(executor: Executor): Promise<string> {
  const shell = await executor.start(["sh", "-c", "stty -echo; stty size; read line; echo got $line"], {
    tty: true, size: { rows: 33, cols: 77 },
  });
  return text(shell, (seen) => {
    if (seen.endsWith("77\r\n")) void shell.write("grüße\n");
  });
}

async function results(url: string): Promise<object> {
  try {
    const executor = await connect(url);
    const { exitCode, stdoutText } = await executor.run(["cat"], { input: "x".repeat(3 << 20) });
    const result = {
      exitCode, bytes: stdoutText.length, terminal: await terminal(executor), survived: await survives(executor),
    };
    await executor.close();
    return result;
  } catch (error) {
    if (error instanceof ExecServerError) return { code: error.code };
    return { error: String(error) };
  }
}

const url = new URLSearchParams(location.search).get("executor")!;
await fetch("/result", { method: "POST", body: JSON.stringify(await results(url)) });
