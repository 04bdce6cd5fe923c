// The time line below a terminal: position, play and pause, speed, gaps.

import { button, duration, h, setText } from './dom.js'
import { EVENT_MS, type Player } from './player.js'

const STEP_MS = 5000
const LONG_STEP_MS = 30_000
const SPEEDS = [1, 2, 8]

/** The controls of a player. */
export class Timeline {
  readonly element: HTMLElement
  private readonly play = button('Play', () => this.toggle(), { class: 'play', title: 'Play or pause (space)' })
  private readonly live = button('Live', () => void this.player.live(), { title: 'Go to the end and follow (End)' })
  private readonly range = h('input', { class: 'position', 'aria-label': 'Position in the output', type: 'range' })
  private readonly marks = h('div', { class: 'marks' })
  private readonly label = h('span', { class: 'time' })
  private readonly speed = h('select', { 'aria-label': 'Speed of the replay' })
  private readonly skip = h('input', { type: 'checkbox' })
  private drawnGaps = ''

  constructor(private readonly player: Player) {
    this.range.min = '0'
    this.range.step = '1'
    this.range.addEventListener('input', () => void player.seek(player.start + Number(this.range.value)))
    this.range.addEventListener('keydown', (event) => this.keyed(event))
    this.speed.append(...SPEEDS.map((each) => new Option(`${each}×`, String(each))))
    this.speed.addEventListener('change', () => { player.speed = Number(this.speed.value) })
    this.skip.checked = true
    this.skip.addEventListener('change', () => { player.skipsPauses = this.skip.checked })
    this.element = h(
      'div',
      { class: 'timeline', role: 'group', 'aria-label': 'Time line' },
      this.play,
      this.live,
      h('div', { class: 'track' }, this.range, this.marks),
      this.label,
      this.speed,
      h('label', { class: 'skip', title: 'A pause in the output lasts two seconds at most' }, this.skip, 'Skip pauses'),
    )
  }

  /** Play, or pause. */
  toggle(): void {
    if (this.player.mode === 'playing') this.player.pause()
    else void this.player.play()
  }

  /** Show the state of the player. */
  update(): void {
    const { start, end, time, mode, timed, ended } = this.player
    const length = Math.max(1, end - start)
    const at = mode === 'live' && !ended ? length : Math.min(Math.max(0, time - start), length)
    this.range.max = String(length)
    this.range.value = String(Math.round(at))
    const shown = timed
      ? `${duration(at)} / ${duration(length)}`
      : `event ${Math.round(at / EVENT_MS)} of ${Math.round(length / EVENT_MS)}`
    setText(this.label, shown)
    this.range.setAttribute('aria-valuetext', shown)
    setText(this.play, mode === 'playing' ? 'Pause' : 'Play')
    this.live.setAttribute('aria-pressed', String(mode === 'live'))
    this.drawGaps(start, length)
  }

  private drawGaps(start: number, length: number): void {
    const { gaps } = this.player
    const state = JSON.stringify([gaps, start, length])
    if (state === this.drawnGaps) return
    this.drawnGaps = state
    this.marks.replaceChildren(
      ...gaps.map((gap) => {
        const mark = h('span', { class: 'gap', role: 'img', 'aria-label': gap.text, title: gap.text })
        mark.style.left = `${(100 * Math.max(0, gap.at - start)) / length}%`
        return mark
      }),
    )
  }

  private keyed(event: KeyboardEvent): void {
    const step = event.shiftKey ? LONG_STEP_MS : STEP_MS
    const steps: Record<string, number> = { ArrowLeft: -step, ArrowRight: step, ArrowDown: -step, ArrowUp: step }
    const move = steps[event.key]
    if (move !== undefined) {
      event.preventDefault()
      void this.player.seek(this.player.time + move)
    } else if (event.key === 'End') {
      event.preventDefault()
      void this.player.live()
    }
  }
}
