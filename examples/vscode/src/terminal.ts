/** A terminal of VS Code whose process runs at an executor. */

import { LineTooLong, NoSuchProcess, StdinUnavailable } from "execclient";
import type { Process } from "execclient";
import * as vscode from "vscode";

/** Makes the process, once VS Code knows the size of the terminal. */
export type Start = (size: { rows: number; cols: number }) => Promise<Process>;

/** What happens to the process of a terminal that VS Code closes. */
export type Closing = "end" | "detach";

const DEFAULT_SIZE = { rows: 24, cols: 80 };

export class ExecutorTerminal implements vscode.Pseudoterminal {
  private readonly writes = new vscode.EventEmitter<string>();
  private readonly closes = new vscode.EventEmitter<number | void>();
  readonly onDidWrite = this.writes.event;
  readonly onDidClose = this.closes.event;
  private process: Promise<Process> | undefined;
  private size = DEFAULT_SIZE;
  private resizing = false;
  private readonly closing = new AbortController();

  /**
   * @param onClose - decided when it is closed.
   * @param onError - called with what ended the terminal before its process did.
   */
  constructor(
    private readonly start: Start, private readonly onClose: () => Closing, private readonly onError: (error: unknown) => void,
  ) {}

  open(dimensions: vscode.TerminalDimensions | undefined): void {
    if (dimensions) this.size = sizeOf(dimensions);
    this.process = this.start(this.size);
    void this.show(this.process);
  }

  private async show(started: Promise<Process>): Promise<void> {
    // A character may arrive in two pieces.
    const decoder = new TextDecoder();
    try {
      const process = await started;
      for await (const piece of process.output({ signal: this.closing.signal })) {
        if (piece.kind === "output") this.writes.fire(decoder.decode(piece.data, { stream: true }));
        else this.writes.fire(`\r\n\x1b[2m[${piece.lostBytes ?? "some"} bytes of output were lost]\x1b[0m\r\n`);
      }
      this.closes.fire((await process.exited()).exitCode);
    } catch (error) {
      if (this.closing.signal.aborted) return;
      this.writes.fire(`\r\n\x1b[31m${String(error)}\x1b[0m\r\n`);
      this.onError(error);
      this.closes.fire(1);
    }
  }

  handleInput(data: string): void {
    // Writes are carried out in their order, each once, also over a lost connection.
    this.process?.then((process) => process.write(data)).catch((error: unknown) => {
      if (error instanceof LineTooLong) this.writes.fire("\x07");
      // Else the end of the process, or of the session, is shown where the output is read.
      else if (!(error instanceof StdinUnavailable || error instanceof NoSuchProcess)) this.onError(error);
    });
  }

  setDimensions(dimensions: vscode.TerminalDimensions): void {
    this.size = sizeOf(dimensions);
    void this.process?.then((process) => this.resize(process), () => undefined);
  }

  /** One request at a time: while a window is dragged, or a connection is replaced, only the last size counts. */
  private async resize(process: Process): Promise<void> {
    if (this.resizing) return;
    this.resizing = true;
    try {
      for (let sent; sent !== this.size; ) {
        sent = this.size;
        await process.resize(sent.rows, sent.cols);
      }
    } catch {
      // The process has ended.
    } finally {
      this.resizing = false;
    }
  }

  /** VS Code calls this when a person closes the terminal, or ends the task. */
  close(): void {
    const ends = this.onClose() === "end";
    this.process?.then(async (process) => {
      this.closing.abort();
      if (ends) await process.terminate();
      else await process.detach();
    }).catch(() => undefined);
  }
}

function sizeOf({ rows, columns }: vscode.TerminalDimensions): { rows: number; cols: number } {
  return { rows, cols: columns };
}
