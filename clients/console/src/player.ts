// The output of one process over time: followed as it comes, or replayed from any moment.

import { Cancelled, type Connection } from './connection.js'
import { bytes } from './dom.js'
import type { Chunk, Entry, Page, SizeChange } from './protocol.js'
import type { Screen } from './screen.js'

/** Of output that is drawn before a position: more would take long, and could not be scrolled to. */
export const DRAWN_BYTES = 8 << 20

const PAGE_BYTES = 256 << 10
const WAIT_MS = 20_000
const DEFAULT_SIZE = { rows: 24, cols: 80 }

/** A pause in the output that is longer is cut to this, if pauses are skipped. */
const LONGEST_PAUSE_MS = 2000

/** Of a daemon that does not report times, each event counts as this. */
export const EVENT_MS = 100

const TICK_MS = 40

export type Mode = 'live' | 'paused' | 'playing'

/** A place in the output where some of it is missing. */
export interface Gap {
  at: number
  text: string
}

/** Follows and replays a process, by `process/read` at the pace of the screen. */
export class Player {
  mode: Mode = 'live'
  speed = 1
  skipsPauses = true
  /** The number of the newest event that is drawn. */
  cursor = 0
  /** The position, in milliseconds since 1970, or since the first event for a daemon without times. */
  time = 0
  start = 0
  end = 0
  timed = true
  ended = false
  gaps: Gap[] = []
  /** What the screen does not show, and why; empty if it shows all. */
  remark = ''
  failure = ''

  private entry: Entry | null = null
  private first = 1
  private sizes: SizeChange[] = []
  private turn = new AbortController()

  constructor(
    private readonly connection: Connection,
    private readonly screen: Screen,
    private readonly changed: () => void,
  ) {}

  /** Show the end of the output of a process, and follow it. */
  async open(entry: Entry): Promise<void> {
    this.stop()
    this.entry = entry
    this.gaps = []
    this.ended = false
    this.failure = this.remark = ''
    this.start = this.end = this.time = entry.startedAtMs
    const turn = this.begin('live')
    await this.guard(async () => {
      await this.measure(turn)
      await this.follow(turn)
    })
  }

  /** Newer facts about the process. */
  update(entry: Entry): void {
    const resized = entry.size && (entry.size.rows !== this.entry?.size?.rows || entry.size.cols !== this.entry.size.cols)
    this.entry = entry
    if (resized && entry.size && this.mode === 'live') this.screen.resize(entry.size)
    if (entry.state === 'running' && this.timed) this.end = Math.max(this.end, entry.startedAtMs + entry.ageMs)
    this.changed()
  }

  close(): void {
    this.stop()
    this.entry = null
  }

  pause(): void {
    if (this.entry) this.begin('paused')
  }

  /** Go to the end, and draw what comes. */
  async live(): Promise<void> {
    const turn = this.begin('live')
    await this.guard(async () => this.follow(turn))
  }

  /** Draw the output up to a time, and stay there. */
  async seek(time: number): Promise<void> {
    const turn = this.begin('paused')
    this.time = Math.min(Math.max(time, this.start), this.end)
    this.changed()
    await this.guard(async () => {
      await this.draw(await this.before(time, turn), turn)
      this.changed()
    })
  }

  /** Draw the output from the position on as it came; from the start, if the position is the end. */
  async play(): Promise<void> {
    const turn = this.begin('playing')
    await this.guard(async () => {
      if (this.time >= this.end || this.cursor >= (this.entry?.lastSeq ?? 0)) {
        this.time = this.start
        await this.draw(this.first - 1, turn)
      }
      await this.playOn(turn)
    })
  }

  // -- inside

  private begin(mode: Mode): AbortSignal {
    this.stop()
    this.turn = new AbortController()
    this.mode = mode
    this.failure = ''
    this.changed()
    return this.turn.signal
  }

  private stop(): void {
    this.turn.abort()
  }

  private async guard(work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (error instanceof Cancelled) return
      this.failure = (error as Error).message
      this.changed()
    }
  }

  private async read(after: number, turn: AbortSignal, waitMs = 0, maxBytes = PAGE_BYTES): Promise<Page> {
    const entry = this.entry
    if (!entry) throw new Cancelled()
    const { sessionId, processId } = entry
    const params = { sessionId, processId, afterSeq: after, maxBytes, waitMs, sizes: entry.tty }
    return this.connection.request<Page>('read', params, turn)
  }

  /** The time of a chunk; `seq` counts where the daemon reports none. */
  private timeOf(chunk: Chunk): number {
    return this.timed ? (chunk.at ?? this.time) : chunk.seq * EVENT_MS
  }

  /** Find the first and last output that is kept, and their times. */
  private async measure(turn: AbortSignal): Promise<void> {
    const entry = this.entry
    if (!entry) return
    const begin = await this.read(0, turn, 0, 1)
    const chunk = begin.chunks.find((each) => each.chunk) ?? begin.chunks[0]
    this.timed = chunk === undefined || chunk.at !== undefined
    this.first = begin.firstSeq ?? chunk?.seq ?? 1
    if (!this.timed) this.start = this.time = this.first * EVENT_MS
    this.noteGap(begin)
    for (let back = 1; chunk; back *= 2) {
      const page = await this.read(Math.max(0, entry.lastSeq - back), turn, 0, 1)
      const last = page.chunks.at(-1)
      if (last || back > entry.lastSeq) {
        this.end = Math.max(this.start, last ? this.timeOf(last) : this.start)
        break
      }
    }
    this.cursor = -1
  }

  /** The number of the event before which at most `DRAWN_BYTES` lie up to `seq`, as far as can be estimated. */
  private drawnFrom(seq: number): number {
    const { lastSeq = 0, retainedBytes = 0 } = this.entry ?? {}
    const each = retainedBytes / Math.max(1, lastSeq - this.first + 1)
    const from = Math.ceil(seq - DRAWN_BYTES / Math.max(1, each))
    return from < this.first ? 0 : from // from 0 the answer has the gap before the first event
  }

  /** The number of the last chunk that came before a time: found in steps, without reading the rest. */
  private async before(time: number, turn: AbortSignal): Promise<number> {
    let low = this.first - 1
    let high = this.entry?.lastSeq ?? 0
    while (low < high) {
      const middle = Math.floor((low + high) / 2)
      const chunk = (await this.read(middle, turn, 0, 1)).chunks[0]
      if (chunk && chunk.seq <= high && this.timeOf(chunk) <= time) low = chunk.seq
      else high = middle
    }
    return low
  }

  /** Draw up to an event: from where the screen is, if that is before it, else from the start or as near as allowed. */
  private async draw(seq: number, turn: AbortSignal): Promise<void> {
    const from = this.drawnFrom(seq)
    if (this.cursor > seq || this.cursor < from) this.restart(from)
    while (this.cursor < seq) {
      const after = this.cursor
      const page = await this.read(after, turn)
      await this.drawPage(page, turn, seq)
      const isBeyond = page.chunks.some((each) => each.seq > seq) || page.nextSeq - 1 === after
      if (isBeyond) this.cursor = Math.max(this.cursor, seq)
    }
    await this.showSize(turn)
  }

  private restart(from: number): void {
    const { tty = false, size } = this.entry ?? {}
    this.cursor = from
    this.sizes = []
    this.screen.reset(tty ? (size ?? DEFAULT_SIZE) : null)
    this.remark = from < this.first ? '' : `Drawn from event ${from + 1} on: at most the last ${bytes(DRAWN_BYTES)}.`
  }

  /** Draw the chunks of a page up to an event. */
  private async drawPage(page: Page, turn: AbortSignal, last = Infinity): Promise<void> {
    this.takeSizes(page)
    await this.drawGap(page, turn)
    for (const chunk of page.chunks) {
      if (chunk.seq > last) return
      await this.drawChunk(chunk, turn)
    }
    if (turn.aborted) throw new Cancelled()
    if (page.nextSeq - 1 <= last) this.cursor = page.nextSeq - 1
  }

  private async drawChunk(chunk: Chunk, turn: AbortSignal): Promise<void> {
    this.applySizes(chunk.seq - 1)
    const data = Uint8Array.from(atob(chunk.chunk), (each) => each.charCodeAt(0))
    await this.screen.write(chunk.stream, data, () => !turn.aborted)
    if (turn.aborted) throw new Cancelled()
    this.cursor = chunk.seq
    if (this.mode !== 'paused') this.time = Math.max(this.time, this.timeOf(chunk))
    this.end = Math.max(this.end, this.time)
  }

  private async drawGap(page: Page, turn: AbortSignal): Promise<void> {
    const text = this.noteGap(page)
    if (text) await this.screen.remark(text, () => !turn.aborted)
  }

  /** Keep the gap before a page for the time line. Returns its text. */
  private noteGap(page: Page): string {
    if (!page.lostBytes) return ''
    const first = page.chunks.find((each) => each.chunk)
    const at = first ? this.timeOf(first) : this.time
    const text = `${page.lostBytes} bytes of output are no longer kept`
    if (!this.gaps.some((each) => each.at === at)) this.gaps.push({ at, text })
    return text
  }

  private takeSizes(page: Page): void {
    for (const each of page.sizes ?? []) {
      if (!this.sizes.some((known) => known.seq === each.seq && known.at === each.at)) this.sizes.push(each)
    }
  }

  /** Apply the sizes that the terminal had when an event had come. */
  private applySizes(seq: number): void {
    const due = this.sizes.filter((each) => each.seq <= seq)
    const newest = due.at(-1)
    if (!newest) return
    this.sizes = this.sizes.filter((each) => each.seq > seq)
    this.screen.resize(newest)
  }

  /** The size at the position: that of the newest event, or a later one that no event has followed yet. */
  private async showSize(turn: AbortSignal): Promise<void> {
    if (!this.entry?.tty || this.mode === 'live') return
    const { sizes = [] } = await this.read(Math.max(0, this.cursor - 1), turn, 0, 1)
    const isPast = (each: SizeChange): boolean => each.seq <= this.cursor && (!this.timed || each.at <= this.time)
    const size = sizes.filter(isPast).at(-1) ?? sizes[0]
    if (size) this.screen.resize(size)
  }

  private async follow(turn: AbortSignal): Promise<void> {
    const last = this.entry?.lastSeq ?? 0
    const from = this.drawnFrom(last)
    if (this.cursor < from) this.restart(from)
    if (this.entry?.tty && this.entry.size) this.screen.resize(this.entry.size)
    for (;;) {
      const after = this.cursor
      const page = await this.read(after, turn, WAIT_MS)
      await this.drawPage(page, turn)
      if (page.closed && page.nextSeq - 1 === after) break
      this.changed()
    }
    this.ended = true
    this.time = this.end
    this.changed()
  }

  private async playOn(turn: AbortSignal): Promise<void> {
    for (;;) {
      const after = this.cursor
      const page = await this.read(after, turn)
      this.takeSizes(page)
      await this.drawGap(page, turn)
      for (const chunk of page.chunks) {
        for (const size of this.sizes.filter((each) => each.seq < chunk.seq)) {
          if (this.timed) await this.pauseUntil(size.at, turn)
          this.applySizes(size.seq)
        }
        await this.pauseUntil(this.timeOf(chunk), turn)
        await this.drawChunk(chunk, turn)
      }
      if (page.nextSeq - 1 !== after) {
        this.cursor = Math.max(this.cursor, page.nextSeq - 1)
        continue
      }
      if (!page.closed) return this.live()
      this.time = this.end
      this.begin('paused')
      return
    }
  }

  /** Let the time of the replay go on to a moment. */
  private async pauseUntil(moment: number, turn: AbortSignal): Promise<void> {
    if (this.skipsPauses) this.time = Math.max(this.time, moment - LONGEST_PAUSE_MS)
    let before = performance.now()
    while (this.time < moment) {
      const left = (moment - this.time) / this.speed
      await new Promise((resolve) => { setTimeout(resolve, Math.min(TICK_MS, left)) })
      if (turn.aborted) throw new Cancelled()
      const now = performance.now()
      this.time = Math.min(moment, this.time + (now - before) * this.speed)
      before = now
      this.changed()
    }
  }
}
