// The files below the folder of a process, to be read.

import { Cancelled, type Connection } from './connection.js'
import { bytes, button, h, visible } from './dom.js'
import type { Entry, FileContent, FolderListing } from './protocol.js'

/** A browser for one folder at a time, and the text of one file. */
export class Files {
  readonly element = h('section', { class: 'files', 'aria-label': 'Files' })
  private entry: Entry | null = null
  private turn = new AbortController()

  constructor(private readonly connection: Connection) {}

  /** Show the folder of a process. */
  async open(entry: Entry): Promise<void> {
    this.entry = entry
    await this.folder('')
  }

  close(): void {
    this.turn.abort()
    this.entry = null
    this.element.replaceChildren()
  }

  private async folder(path: string): Promise<void> {
    await this.show(path, async (params, turn) => {
      const { entries, total } = await this.connection.request<FolderListing>('listFiles', params, turn)
      const items = entries.map(({ name, kind }) => {
        const inside = path ? `${path}/${name}` : name
        const shown = visible(name) + (kind === 'folder' ? '/' : '')
        if (kind === 'folder') return h('li', {}, button(shown, () => void this.folder(inside), { class: kind }))
        if (kind === 'file') return h('li', {}, button(shown, () => void this.file(inside), { class: kind }))
        return h('li', { class: 'other' }, shown)
      })
      const left = total - entries.length
      return [
        h('ul', {}, ...items),
        left ? h('p', {}, `${left} more are not shown.`) : null,
        total ? null : h('p', {}, 'The folder is empty.'),
      ]
    })
  }

  private async file(path: string): Promise<void> {
    await this.show(path, async (params, turn) => {
      const content = await this.connection.request<FileContent>('readFile', params, turn)
      if (content.kind === 'text') return [h('pre', { tabindex: 0, 'aria-label': `Text of ${visible(path)}` }, content.text)]
      const why = content.kind === 'large' ? 'is too large to be shown (1 MiB at most)' : 'is binary'
      return [h('p', {}, `The file ${why}: ${bytes(content.size)}.`)]
    })
  }

  private async show(
    path: string,
    load: (params: object, turn: AbortSignal) => Promise<(HTMLElement | null)[]>,
  ): Promise<void> {
    const entry = this.entry
    if (!entry) return
    this.turn.abort()
    this.turn = new AbortController()
    const { sessionId, processId } = entry
    let content: (HTMLElement | null)[]
    try {
      content = await load({ sessionId, processId, path }, this.turn.signal)
    } catch (error) {
      if (error instanceof Cancelled) return
      content = [h('p', { class: 'error', role: 'alert' }, visible((error as Error).message))]
    }
    this.element.replaceChildren(this.trail(entry.cwd ?? '', path), ...content.filter((each) => each !== null))
  }

  /** The folders above a path, each to go to. */
  private trail(root: string, path: string): HTMLElement {
    const names = path ? path.split('/') : []
    const steps = names.map((name, index) =>
      button(visible(name), () => void this.folder(names.slice(0, index + 1).join('/')), { disabled: index === names.length - 1 }))
    return h('div', { class: 'trail' }, button(visible(root), () => void this.folder('')), ...steps)
  }
}
