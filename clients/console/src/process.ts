// One process: its output, time line, search and files, and what may be done to it.

import { Cancelled, type Connection } from './connection.js'
import { button, h, setText, visible } from './dom.js'
import { Files } from './files.js'
import { commandOf, keyOf, stateOf } from './list.js'
import { Player } from './player.js'
import type { Entry } from './protocol.js'
import { Screen, SCROLLBACK } from './screen.js'
import { Timeline } from './timeline.js'

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2', 'SIGSTOP', 'SIGCONT', 'SIGKILL']

type Tab = 'output' | 'files'

/** The right side of the page. */
export class ProcessView {
  readonly element: HTMLElement
  /** Of the process that is shown; empty for none. */
  key = ''

  private readonly place = h('div', { class: 'place' })
  private readonly screen: Screen
  private readonly player: Player
  private readonly timeline: Timeline
  private readonly files: Files
  private readonly title = h('h2', { tabindex: -1 })
  private readonly facts = h('p', { class: 'facts' })
  private readonly status = h('p', { class: 'remark', role: 'status' })
  private readonly pattern = h('input', { type: 'search', 'aria-label': 'Search in the output' })
  private readonly matches = h('span', { class: 'matches', role: 'status' })
  private readonly found: HTMLElement
  private readonly fit: HTMLElement
  private readonly tabs = new Map<Tab, HTMLButtonElement>()
  private readonly output: HTMLElement
  private readonly nothing = h('p', { class: 'empty' }, 'Choose a process.')
  private readonly content: HTMLElement
  private readonly controls: HTMLElement
  private readonly kill = button('Kill', () => this.killed(), { class: 'refuse' })
  private readonly line = h('input', { type: 'text', 'aria-label': 'Line for the standard input' })
  private readonly stdin: HTMLElement
  private entry: Entry | null = null
  private link = ''
  private failure = ''
  private input: Promise<unknown> = Promise.resolve()

  constructor(
    private readonly connection: Connection,
    private readonly write: boolean,
    back: () => void,
  ) {
    this.stdin = this.stdinForm()
    this.fit = button('Fit terminal', () => {
      const { rows, cols } = this.screen.proposed
      this.act('resize', { rows, cols })
    })
    this.controls = this.controlBar()
    this.found = this.searchBar()
    this.output = h('section', { class: 'output', 'aria-label': 'Output' })
    this.files = new Files(connection)
    this.files.element.hidden = true
    const tabs = h('div', { class: 'tabs', role: 'group', 'aria-label': 'Views' }, this.tab('output', 'Output'), this.tab('files', 'Files'))
    this.content = h(
      'div',
      { class: 'content', hidden: true },
      h('div', { class: 'heading' }, button('‹ List', back, { class: 'back' }), this.title, this.facts),
      h('div', { class: 'bar' }, tabs, this.found),
      this.output,
      this.files.element,
    )
    this.element = h('section', { class: 'process-view', 'aria-label': 'Process' }, this.nothing, this.content)
    this.screen = new Screen(this.place)
    this.player = new Player(connection, this.screen, () => this.changed())
    this.timeline = new Timeline(this.player)
    this.output.append(this.place, this.timeline.element, this.status, this.controls)
    this.screen.onInput = (data) => this.type(data)
    this.screen.onLink = (address) => { this.link = address; this.changed() }
    this.screen.onMatches = (count, current) => this.matched(count, current)
  }

  /** Show a process from its end. */
  open(entry: Entry): void {
    if (this.key === keyOf(entry)) {
      this.update(entry)
      return
    }
    this.key = keyOf(entry)
    this.entry = entry
    this.failure = ''
    this.nothing.hidden = true
    this.content.hidden = false
    this.files.close()
    this.endSearch()
    this.show('output')
    this.update(entry)
    void this.player.open(entry)
  }

  /** Newer facts about the process. */
  update(entry: Entry): void {
    this.entry = entry
    setText(this.title, commandOf(entry))
    const facts = [entry.processId, `session ${entry.sessionId.slice(0, 8)}`, `pid ${entry.pid}`, entry.cwd ?? '', stateOf(entry)]
    setText(this.facts, facts.filter((each) => each).map(visible).join(' · '))
    this.player.update(entry)
  }

  /** The daemon does not list the process any more. */
  forgotten(): void {
    if (this.entry && this.entry.state === 'running') this.failure = 'The daemon does not know this process any more.'
    this.changed()
  }

  close(): void {
    this.player.close()
    this.screen.typing = false
  }

  show(tab: Tab): void {
    for (const [name, each] of this.tabs) each.setAttribute('aria-pressed', String(name === tab))
    this.output.hidden = this.found.hidden = tab !== 'output'
    this.files.element.hidden = tab !== 'files'
    if (tab === 'files' && this.entry) void this.files.open(this.entry)
  }

  toggle(): void {
    if (this.entry) this.timeline.toggle()
  }

  search(): void {
    this.show('output')
    this.pattern.focus()
    this.pattern.select()
  }

  endSearch(): void {
    this.pattern.value = ''
    this.screen.endSearch()
    this.pattern.blur()
  }

  /** Whether an element is the terminal, and the user cannot type into it. */
  isReadOnlyTerminal(target: Element): boolean {
    return this.place.contains(target) && !this.mayType()
  }

  // -- inside

  private changed(): void {
    const { player } = this
    this.timeline.update()
    this.screen.typing = this.mayType()
    const waits = this.write && this.entry?.state === 'running' && player.mode !== 'live' ? 'Go to Live to type.' : ''
    const link = this.link ? `Link (not opened): ${visible(this.link)}` : ''
    const failure = this.failure || player.failure
    setText(this.status, link || [visible(failure), player.remark, waits].filter((each) => each).join(' '))
    this.status.classList.toggle('error', !link && failure !== '')
    const isRunning = this.entry?.state === 'running'
    this.controls.hidden = !this.write || !isRunning
    this.stdin.hidden = this.entry?.tty ?? true
    this.fit.hidden = !this.stdin.hidden
  }

  private mayType(): boolean {
    return this.write && this.player.mode === 'live' && this.entry?.state === 'running' && this.entry.tty
  }

  private tab(name: Tab, text: string): HTMLButtonElement {
    const made = button(text, () => this.show(name), { 'aria-pressed': 'false' })
    this.tabs.set(name, made)
    return made
  }

  private searchBar(): HTMLElement {
    const scope = `Searches in what is drawn: the last ${SCROLLBACK.toLocaleString('en')} lines.`
    this.pattern.placeholder = 'Search in what is drawn (/)'
    this.pattern.title = scope
    this.pattern.addEventListener('input', () => this.screen.find(this.pattern.value, true))
    this.pattern.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') this.screen.find(this.pattern.value, !event.shiftKey)
    })
    const before = button('↑', () => this.screen.find(this.pattern.value, false), { 'aria-label': 'Match before' })
    const next = button('↓', () => this.screen.find(this.pattern.value, true), { 'aria-label': 'Next match' })
    return h('div', { class: 'search', role: 'search' }, this.pattern, before, next, this.matches)
  }

  private matched(count: number, current: number): void {
    const none = `not in the last ${SCROLLBACK.toLocaleString('en')} lines`
    setText(this.matches, !this.screen.searching ? '' : count ? `${current || '?'} of ${count}` : none)
  }

  // -- acts, which the server refuses unless it was started with --write

  private controlBar(): HTMLElement {
    const names = h('select', { 'aria-label': 'Signal' })
    names.append(...SIGNALS.map((each) => new Option(each)))
    const send = button('Send signal', () => this.act('signal', { signal: names.value }))
    return h('div', { class: 'controls', hidden: true }, this.stdin, this.fit, names, send, this.kill)
  }

  private stdinForm(): HTMLElement {
    const send = (): void => {
      this.type(`${this.line.value}\n`)
      this.line.value = ''
    }
    this.line.placeholder = 'A line for its standard input'
    this.line.addEventListener('keydown', (event) => { if (event.key === 'Enter') send() })
    return h('span', { class: 'stdin' }, this.line, button('Send line', send), button('Close input', () => this.act('closeInput', {})))
  }

  /** The second click within some seconds kills. */
  private killed(): void {
    if (this.kill.dataset['sure']) {
      this.act('kill', {})
      delete this.kill.dataset['sure']
      setText(this.kill, 'Kill')
      return
    }
    this.kill.dataset['sure'] = 'yes'
    setText(this.kill, 'Kill it and its descendants?')
    setTimeout(() => { delete this.kill.dataset['sure']; setText(this.kill, 'Kill') }, 4000)
  }

  private type(data: string): void {
    this.act('input', { data })
  }

  /** One act after the other: what is typed arrives in order. */
  private act(method: string, params: object): void {
    const entry = this.entry
    if (!entry) return
    const { sessionId, processId } = entry
    this.input = this.input.then(async () => {
      try {
        await this.connection.request(method, { sessionId, processId, ...params })
        this.failure = ''
      } catch (error) {
        if (error instanceof Cancelled) return
        this.failure = (error as Error).message
      }
      this.changed()
    })
  }
}
