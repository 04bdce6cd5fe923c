// The terminal in which output is drawn.

import { FitAddon } from '@xterm/addon-fit'
import { SearchAddon } from '@xterm/addon-search'
import { Terminal, type IFunctionIdentifier, type ITheme } from '@xterm/xterm'

import type { Size } from './protocol.js'

/** Lines that are kept above the visible ones: what can be scrolled to and searched. */
export const SCROLLBACK = 10_000

/** Characters that are drawn before the page can react to the user again. */
const SLICE = 32 << 10

const DARK: ITheme = { background: '#12161c', foreground: '#d7dde5', cursor: '#d7dde5', selectionBackground: '#35506e' }
const LIGHT: ITheme = {
  background: '#ffffff',
  foreground: '#1c232b',
  cursor: '#1c232b',
  selectionBackground: '#b9d6f5',
  black: '#1c232b',
  brightBlack: '#5b6672',
  white: '#69737d',
  brightWhite: '#424a53',
}

const COLORS = {
  matchBackground: '#8a6d00',
  matchOverviewRuler: '#8a6d00',
  activeMatchBackground: '#b34700',
  activeMatchColorOverviewRuler: '#b34700',
}

/**
 * Queries in output: for attributes of the terminal, its state, modes and window. A terminal answers them as if the
 * user had typed the answer, and a process that is only looked at must not be answered by each page that shows it.
 */
const QUERIES: readonly IFunctionIdentifier[] = [
  { final: 'c' },
  { prefix: '>', final: 'c' },
  { final: 'n' },
  { prefix: '?', final: 'n' },
  { intermediates: '$', final: 'p' },
  { prefix: '?', intermediates: '$', final: 'p' },
  { final: 't' },
]

/** OSC sequences that set a color of the palette, or ask for it. */
const COLOR_QUERIES = [4, 10, 11, 12]

/** What the terminal sends when it gets and loses the focus, to a process that has asked for it. */
const FOCUS_REPORTS = ['\x1b[I', '\x1b[O']

/** A terminal. What a program writes reaches only its cells: no title, no clipboard, no link that opens. */
export class Screen {
  /** Called with what the user has typed or pasted; never with answers of the terminal itself. */
  onInput: (data: string) => void = () => {}
  /** Called with the address of a link below the pointer; empty if there is none. */
  onLink: (address: string) => void = () => {}
  /** Called with the number of matches of a search, and of the current one, from 1. */
  onMatches: (count: number, current: number) => void = () => {}

  private readonly terminal: Terminal
  private readonly search = new SearchAddon({ highlightLimit: 2000 })
  private readonly fitting = new FitAddon()
  private readonly dark = matchMedia('(prefers-color-scheme: dark)')
  private decoders = new Map<string, TextDecoder>()
  private fixed = false
  private queue: Promise<void> = Promise.resolve()
  private pattern = ''

  constructor(private readonly parent: HTMLElement) {
    this.terminal = new Terminal({
      allowProposedApi: true, // for the marks of search results
      cursorBlink: false,
      disableStdin: true,
      fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
      fontSize: 13,
      linkHandler: {
        activate: () => {}, // a link of a process is never opened
        hover: (_, address) => this.onLink(address),
        leave: () => this.onLink(''),
      },
      minimumContrastRatio: 4.5,
      scrollback: SCROLLBACK,
      theme: this.theme(),
    })
    this.terminal.loadAddon(this.search)
    this.terminal.loadAddon(this.fitting)
    this.terminal.open(parent)
    this.terminal.textarea?.setAttribute('aria-label', 'Output of the process')
    this.terminal.attachCustomKeyEventHandler((event) => event.key !== 'F6' && this.types(event))
    this.dark.addEventListener('change', () => { this.terminal.options.theme = this.theme() })
    this.search.onDidChangeResults(({ resultCount, resultIndex }) => this.onMatches(resultCount, resultIndex + 1))
    new ResizeObserver(() => this.fit()).observe(parent)
    this.forwardInput()
  }

  /** Allow the user to type, or not. */
  set typing(allowed: boolean) {
    this.terminal.options.disableStdin = !allowed
  }

  get size(): Size {
    return { rows: this.terminal.rows, cols: this.terminal.cols }
  }

  /** The size that would fill the place of the terminal. */
  get proposed(): Size {
    const size = this.fitting.proposeDimensions()
    return size && size.rows > 0 && size.cols > 0 ? { rows: size.rows, cols: size.cols } : this.size
  }

  /**
   * Begin with an empty screen.
   *
   * @param size of the terminal of the process; without one, the screen fills its place, and lines end with LF.
   */
  reset(size: Size | null): void {
    this.queue = this.queue.then(() => {
      this.terminal.reset()
      this.terminal.clear()
      this.decoders = new Map()
      this.terminal.options.convertEol = size === null
      this.fixed = size !== null
      if (size) this.terminal.resize(size.cols, size.rows)
      else this.fit()
    })
  }

  /** Set the size of the terminal of the process, after what was written before. */
  resize(size: Size): void {
    this.queue = this.queue.then(() => {
      this.fixed = true
      this.terminal.resize(size.cols, size.rows)
    })
  }

  /** Draw output; resolves when it is drawn, so that the reader keeps to the pace of the terminal. */
  write(stream: string, data: Uint8Array, isCurrent: () => boolean): Promise<void> {
    return this.later(isCurrent, () => {
      let decoder = this.decoders.get(stream)
      if (!decoder) this.decoders.set(stream, (decoder = new TextDecoder()))
      return decoder.decode(data, { stream: true })
    })
  }

  /** Draw a remark of the page on a line of its own. It ends whatever control sequence was begun before it. */
  remark(text: string, isCurrent: () => boolean): Promise<void> {
    return this.later(isCurrent, () => `\x18\x1b\\\x1b[0m\r\n\x1b[7m ${text} \x1b[0m\r\n`)
  }

  /** Mark the places of a text in what is drawn, and go to the next one. */
  find(pattern: string, forward: boolean): void {
    this.pattern = pattern
    const options = { decorations: COLORS, incremental: false }
    if (!pattern) this.endSearch()
    else if (forward) this.search.findNext(pattern, options)
    else this.search.findPrevious(pattern, options)
  }

  endSearch(): void {
    this.pattern = ''
    this.search.clearDecorations()
    this.terminal.clearSelection()
    this.onMatches(0, 0)
  }

  get searching(): boolean {
    return this.pattern !== ''
  }

  focus(): void {
    this.terminal.focus()
  }

  /** The text of the lines that are drawn. */
  text(): string {
    const buffer = this.terminal.buffer.active
    const lines = Array.from({ length: buffer.length }, (_, row) => buffer.getLine(row)?.translateToString(true) ?? '')
    return lines.join('\n')
  }

  private later(isCurrent: () => boolean, take: () => string): Promise<void> {
    this.queue = this.queue.then(async () => {
      if (!isCurrent()) return
      const text = take()
      for (let start = 0; start < text.length && isCurrent(); start += SLICE) {
        await new Promise<void>((resolve) => this.terminal.write(text.slice(start, start + SLICE), resolve))
      }
    })
    return this.queue
  }

  private fit(): void {
    if (this.fixed || !this.parent.offsetParent) return
    const size = this.proposed
    if (size.cols !== this.terminal.cols || size.rows !== this.terminal.rows) this.terminal.resize(size.cols, size.rows)
  }

  private theme(): ITheme {
    return this.dark.matches ? DARK : LIGHT
  }

  /** Without typing, keys belong to the page, but for those that scroll. */
  private types(event: KeyboardEvent): boolean {
    return !this.terminal.options.disableStdin || event.shiftKey
  }

  /** xterm reports what the user types and what the terminal answers by the same event. So it answers nothing. */
  private forwardInput(): void {
    const { parser } = this.terminal
    for (const query of QUERIES) parser.registerCsiHandler(query, () => true)
    for (const query of COLOR_QUERIES) parser.registerOscHandler(query, () => true)
    parser.registerDcsHandler({ intermediates: '$', final: 'q' }, () => true)
    this.terminal.onData((data) => {
      if (!FOCUS_REPORTS.includes(data)) this.onInput(data)
    })
  }
}
