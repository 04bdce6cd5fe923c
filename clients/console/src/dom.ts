// Elements and times. Text from a process or a daemon becomes a text node, never HTML.

type Child = Node | string | null | undefined

interface Attributes {
  class?: string
  id?: string
  role?: string
  title?: string
  type?: string
  tabindex?: number
  disabled?: boolean
  hidden?: boolean
  click?: () => void
  [attribute: `aria-${string}` | `data-${string}`]: string
}

/** A new element with its attributes and children. */
export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'click') element.addEventListener('click', () => (value as () => void)())
    else if (typeof value === 'boolean') element.toggleAttribute(name, value)
    else element.setAttribute(name, String(value))
  }
  element.append(...children.filter((each) => each !== null && each !== undefined))
  return element
}

/** A button with a text. */
export function button(text: string, click: () => void, attributes: Attributes = {}): HTMLButtonElement {
  return h('button', { type: 'button', click, ...attributes }, text)
}

/** Set the text of an element, if it is another one. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text
}

/** A duration: `1:02:03`, `2:03`, `0:03.4`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000
  const minutes = Math.floor(seconds / 60)
  if (minutes >= 60) {
    const rest = String(minutes % 60).padStart(2, '0')
    return `${Math.floor(minutes / 60)}:${rest}:${String(Math.floor(seconds % 60)).padStart(2, '0')}`
  }
  return `${minutes}:${(seconds % 60).toFixed(1).padStart(4, '0')}`
}

/** A rough duration: `4 s`, `3 min`, `2 h`, `5 d`. */
export function roughly(ms: number): string {
  const seconds = ms / 1000
  if (seconds < 90) return `${Math.floor(seconds)} s`
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min`
  return seconds < 129_600 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`
}

/** A size in bytes: `999 B`, `1.2 MiB`. */
export function bytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let unit = 0
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024
    unit += 1
  }
  return `${unit && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`
}

/** Text with its control and direction characters replaced, so that a name cannot be shown as another one. */
export function visible(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (each) =>
    each === '\n' ? '⏎' : `\\u${each.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
