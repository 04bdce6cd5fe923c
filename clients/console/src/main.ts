// The page: the list of processes, and the one that is shown.

import { Approvals } from './approvals.js'
import { Connection } from './connection.js'
import { button, h, setText, visible } from './dom.js'
import { keyOf, ProcessList } from './list.js'
import { ProcessView } from './process.js'
import type { Entry, Opened, Processes } from './protocol.js'
import { adoptStyles } from './styles.js'

const SELECTED = 'selected'

const SHORTCUTS: [string, string][] = [
  ['↑ ↓ Home End', 'in the list: the process before or after, the first or last'],
  ['Enter', 'in the list: show the process'],
  ['/', 'search in the output'],
  ['Enter, Shift+Enter', 'in the search: the next match, the one before'],
  ['Space', 'play or pause the replay'],
  ['← →', 'at the time line: 5 s back or forth; with Shift 30 s'],
  ['End', 'at the time line: follow the output'],
  ['O, F', 'output, files'],
  ['A', 'the first approval'],
  ['L, Escape', 'back to the list'],
  ['F6', 'leave the terminal while typing'],
  ['?', 'this help'],
]

/** All of the page, once its connection is open. */
class App {
  private readonly state = h('span', { class: 'state', role: 'status' })
  private readonly help = h('dialog', { class: 'help', 'aria-label': 'Keyboard' })
  private readonly list = new ProcessList((entry) => this.select(entry))
  private readonly view: ProcessView
  private readonly approvals: Approvals
  private selected = sessionStorage.getItem(SELECTED) ?? ''

  constructor(connection: Connection, opened: Opened) {
    this.view = new ProcessView(connection, opened.write, () => this.back())
    this.approvals = new Approvals(connection)
    this.fillHelp(opened)
    const mode = opened.write ? 'typing allowed' : 'read only'
    document.body.replaceChildren(
      h(
        'header',
        { class: 'top' },
        h('h1', {}, 'execserver console'),
        h('span', { class: 'daemon', title: visible(opened.daemon) }, visible(opened.daemon)),
        h('span', { class: opened.write ? 'mode write' : 'mode' }, mode),
        this.state,
        button('?', () => this.help.showModal(), { 'aria-label': 'Keyboard', title: 'Keyboard (?)' }),
      ),
      this.approvals.element,
      h('main', {}, this.list.element, this.view.element),
      this.help,
    )
    document.addEventListener('keydown', (event) => this.keyed(event))
  }

  processes(processes: Processes): void {
    const texts = { connecting: 'connecting…', connected: 'connected', reconnecting: 'reconnecting…' }
    this.state.dataset['state'] = processes.state
    this.state.title = visible(processes.message)
    setText(this.state, texts[processes.state])
    this.list.update(processes)
    const entry = processes.processes.find((each) => keyOf(each) === this.selected)
    if (entry && this.view.key === this.selected) this.view.update(entry)
    else if (entry && !document.body.classList.contains('back')) this.select(entry)
    else if (!entry && processes.state === 'connected' && this.view.key) this.view.forgotten()
  }

  approval(approvals: Parameters<Approvals['update']>[0]): void {
    this.approvals.update(approvals)
  }

  ended(reason: string): void {
    this.state.dataset['state'] = 'ended'
    setText(this.state, 'ended')
    document.body.prepend(h('p', { class: 'ended', role: 'alert' }, visible(reason)))
    this.view.close()
  }

  private select(entry: Entry): void {
    this.selected = keyOf(entry)
    sessionStorage.setItem(SELECTED, this.selected)
    this.list.mark(this.selected)
    document.body.classList.add('detail')
    document.body.classList.remove('back')
    this.view.open(entry)
  }

  /** On a narrow screen: back from the process to the list. */
  private back(): void {
    document.body.classList.remove('detail')
    document.body.classList.add('back')
    this.list.focus()
  }

  private fillHelp(opened: Opened): void {
    const rows = SHORTCUTS.flatMap(([keys, text]) => [h('dt', {}, keys), h('dd', {}, text)])
    const licenses = h('a', {}, 'Licenses')
    licenses.href = '/licenses.txt'
    this.help.append(
      h('h2', {}, 'Keyboard'),
      h('dl', {}, ...rows),
      h('p', {}, `execserver ${opened.version} · `, licenses),
      button('Close', () => this.help.close()),
    )
  }

  private keyed(event: KeyboardEvent): void {
    const target = event.target as HTMLElement
    const isTyping = target.matches('textarea, select, input:not([type=range]):not([type=checkbox])')
    if (event.key === 'F6') {
      event.preventDefault()
      this.list.focus()
      return
    }
    if (this.help.open || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return
    if (isTyping && !(this.view.isReadOnlyTerminal(target) && event.key !== 'Enter')) {
      if (event.key === 'Escape' && target.matches('input[type=search]')) this.view.endSearch()
      return
    }
    const acts: Record<string, () => void> = {
      '/': () => this.view.search(),
      '?': () => this.help.showModal(),
      ' ': () => this.view.toggle(),
      o: () => this.view.show('output'),
      f: () => this.view.show('files'),
      a: () => this.approvals.focus(),
      l: () => this.back(),
      Escape: () => this.back(),
    }
    const act = acts[event.key]
    if (!act || (event.key === ' ' && target.matches('button, input, [role=listbox]'))) return
    event.preventDefault()
    act()
  }
}

async function begin(): Promise<void> {
  adoptStyles()
  let app: App | null = null
  // What arrives before the page is made is kept until then.
  let early: (() => void)[] = []
  const deliver = (act: (app: App) => void): void => {
    if (app) act(app)
    else early.push(() => { if (app) act(app) })
  }
  try {
    const [connection, opened] = await Connection.open(
      {
        processes: (params) => deliver((page) => page.processes(params)),
        approvals: (params) => deliver((page) => page.approval(params)),
      },
      (reason) => deliver((page) => page.ended(reason)),
    )
    app = new App(connection, opened)
    early.forEach((act) => act())
    early = []
  } catch (error) {
    const text = visible((error as Error).message)
    document.body.replaceChildren(
      h('div', { class: 'refused' }, h('h1', {}, 'execserver console'), h('p', { role: 'alert' }, text)),
    )
  }
}

void begin()
