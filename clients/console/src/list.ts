// The list of sessions and their processes.

import { h, roughly, setText, visible } from './dom.js'
import type { Entry, Processes } from './protocol.js'

/** The name of a process across sessions. */
export function keyOf(entry: { sessionId: string; processId: string }): string {
  return `${entry.sessionId}/${entry.processId}`
}

/** What a process is and how it ended. */
export function stateOf(entry: Entry): string {
  if (entry.state === 'running') return 'running'
  const cause = entry.cause && entry.cause !== 'normal' ? ` (${entry.cause})` : ''
  return `exit ${entry.exitCode ?? '?'}${cause}`
}

/** The command line as it is shown. */
export function commandOf(entry: Entry): string {
  return visible(entry.argv?.join(' ') || entry.processId)
}

/** A list box of all processes, grouped by session. */
export class ProcessList {
  readonly element: HTMLElement
  private readonly box = h('div', { class: 'processes', role: 'listbox', tabindex: 0, 'aria-label': 'Processes' })
  private readonly filter = h('input', { type: 'search', 'aria-label': 'Filter processes' })
  private readonly empty = h('p', { class: 'empty' })
  private readonly rows = new Map<string, HTMLElement>()
  private processes: Entry[] = []
  private shown: Entry[] = []
  private active = ''
  private selected = ''

  constructor(private readonly select: (entry: Entry) => void) {
    this.filter.placeholder = 'Filter'
    this.filter.addEventListener('input', () => this.draw())
    this.box.addEventListener('keydown', (event) => this.keyed(event))
    this.element = h('nav', { class: 'list', 'aria-label': 'Sessions and processes' }, this.filter, this.box, this.empty)
  }

  /** Show a new list. */
  update(processes: Processes): void {
    this.processes = processes.processes
    setText(this.empty, processes.message || (this.processes.length ? '' : 'No processes.'))
    this.empty.append(...processes.notices.map((each) => h('span', { class: 'notice' }, visible(each))))
    this.draw()
  }

  /** Mark the process that is shown. */
  mark(key: string): void {
    this.selected = this.active = key
    this.draw()
  }

  focus(): void {
    this.box.focus()
  }

  private draw(): void {
    const wanted = this.filter.value.toLowerCase()
    this.shown = this.processes.filter((each) => `${commandOf(each)} ${each.processId}`.toLowerCase().includes(wanted))
    // The newest session first, and in it the newest process.
    const sessions = new Map<string, Entry[]>()
    for (const each of [...this.shown].reverse()) {
      sessions.set(each.sessionId, [...(sessions.get(each.sessionId) ?? []), each])
    }
    this.shown = [...sessions.values()].flat()
    const groups = [...sessions].map(([id, entries]) => {
      const label = h('div', { class: 'session', title: id, role: 'presentation' }, `session ${visible(id).slice(0, 8)}`)
      return h('div', { role: 'group', 'aria-label': `session ${visible(id)}` }, label, ...entries.map((each) => this.row(each)))
    })
    for (const key of this.rows.keys()) {
      if (!this.processes.some((each) => keyOf(each) === key)) this.rows.delete(key)
    }
    const scrolled = this.box.scrollTop
    this.box.replaceChildren(...groups)
    this.box.scrollTop = scrolled
    const active = this.rows.get(this.active)
    if (active?.isConnected) this.box.setAttribute('aria-activedescendant', active.id)
    else this.box.removeAttribute('aria-activedescendant')
  }

  private row(entry: Entry): HTMLElement {
    const key = keyOf(entry)
    let row = this.rows.get(key)
    if (!row) {
      row = h('div', { class: 'process', role: 'option', id: `process-${crypto.randomUUID()}`, 'data-process': key })
      row.append(h('span', { class: 'command' }), h('span', { class: 'facts' }))
      row.addEventListener('click', () => this.choose(key))
      this.rows.set(key, row)
    }
    const [command, facts] = row.children
    if (command) setText(command, commandOf(entry))
    if (facts) setText(facts, `${stateOf(entry)} · ${roughly(entry.ageMs)}${entry.tty ? ' · terminal' : ''}`)
    row.dataset['state'] = entry.state === 'running' ? 'running' : entry.exitCode === 0 ? 'ok' : 'failed'
    row.setAttribute('aria-selected', String(key === this.selected))
    row.classList.toggle('active', key === this.active)
    return row
  }

  private choose(key: string): void {
    const entry = this.processes.find((each) => keyOf(each) === key)
    if (entry) this.select(entry)
  }

  private keyed(event: KeyboardEvent): void {
    const at = this.shown.findIndex((each) => keyOf(each) === this.active)
    const last = this.shown.length - 1
    const moves: Record<string, number> = { ArrowDown: Math.min(at + 1, last), ArrowUp: Math.max(at - 1, 0), Home: 0, End: last }
    const to = moves[event.key]
    const entry = to === undefined ? undefined : this.shown[to]
    if (entry) {
      event.preventDefault()
      this.active = keyOf(entry)
      this.draw()
      this.rows.get(this.active)?.scrollIntoView({ block: 'nearest' })
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault()
      this.choose(this.active)
    }
  }
}
