/** What the sample uses of the `vscode` module, and what a person does with it. */

import type * as api from "vscode";

type Listener<T> = (value: T) => unknown;

export class EventEmitter<T> {
  private readonly listeners = new Set<Listener<T>>();
  readonly event = (listener: Listener<T>): api.Disposable => {
    this.listeners.add(listener);
    return { dispose: () => this.listeners.delete(listener) };
  };

  fire(value: T): void {
    for (const each of this.listeners) each(value);
  }
}

export class CustomExecution {
  constructor(readonly callback: (definition: api.TaskDefinition) => Thenable<api.Pseudoterminal>) {}
}

export class Task {
  constructor(
    readonly definition: api.TaskDefinition, readonly scope: unknown, readonly name: string, readonly source: string,
    readonly execution: CustomExecution,
  ) {}
}

export class TerminalProfile {
  constructor(readonly options: api.ExtensionTerminalOptions) {}
}

export const TaskScope = { Global: 1, Workspace: 2 };

/** A terminal as VS Code drives it. */
export class Terminal {
  text = "";
  /** Its exit code, when it has closed itself. */
  readonly closed: Promise<number | void>;
  private readonly news = new EventEmitter<void>();

  constructor(private readonly pty: api.Pseudoterminal, size: api.TerminalDimensions | undefined = { rows: 20, columns: 70 }) {
    pty.onDidWrite((text) => {
      this.text += text;
      this.news.fire();
    });
    this.closed = new Promise((resolve) => pty.onDidClose!(resolve));
    pty.open(size);
  }

  show(): void {}

  type(text: string): void {
    this.pty.handleInput!(text);
  }

  resize(rows: number, columns: number): void {
    this.pty.setDimensions!({ rows, columns });
  }

  dispose(): void {
    this.pty.close();
  }

  /** Wait until its text contains a text. */
  async until(wanted: string): Promise<void> {
    while (!this.text.includes(wanted)) {
      await new Promise<void>((resolve) => {
        const { dispose } = this.news.event(() => {
          dispose();
          resolve();
        });
      });
    }
  }
}

/** What the window of this test has, and what its person chooses. */
export const person = {
  settings: {} as Record<string, string>,
  terminals: [] as Terminal[],
  errors: [] as string[],
  choices: [] as api.QuickPickItem[],
  commands: new Map<string, () => unknown>(),
  profiles: new Map<string, api.TerminalProfileProvider>(),
  taskProviders: new Map<string, api.TaskProvider>(),
  choose: (_: api.QuickPickItem[]): api.QuickPickItem | undefined => undefined,
};

const nothing = { dispose: () => undefined };

export const window = {
  createTerminal({ pty }: api.ExtensionTerminalOptions): Terminal {
    const terminal = new Terminal(pty);
    person.terminals.push(terminal);
    return terminal;
  },
  async showErrorMessage(text: string): Promise<void> {
    person.errors.push(text);
  },
  async showQuickPick(items: api.QuickPickItem[]): Promise<api.QuickPickItem | undefined> {
    person.choices = items;
    return person.choose(items);
  },
  registerTerminalProfileProvider(id: string, provider: api.TerminalProfileProvider): api.Disposable {
    person.profiles.set(id, provider);
    return nothing;
  },
};

export const workspace = {
  getConfiguration: (section: string) => ({
    get: (name: string, fallback: string) => person.settings[`${section}.${name}`] ?? fallback,
  }),
};

export const commands = {
  registerCommand(id: string, command: () => unknown): api.Disposable {
    person.commands.set(id, command);
    return nothing;
  },
};

export const tasks = {
  registerTaskProvider(type: string, provider: api.TaskProvider): api.Disposable {
    person.taskProviders.set(type, provider);
    return nothing;
  },
};
