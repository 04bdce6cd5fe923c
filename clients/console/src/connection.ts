// The WebSocket to the server of the page.

import type { Events, Opened } from './protocol.js'

const KEY = 'key'

/** The server refused a request; `kind` is the class of its error. */
export class RequestError extends Error {
  constructor(
    readonly kind: string,
    message: string,
  ) {
    super(message)
  }
}

/** A request was given up by the page. */
export class Cancelled extends Error {}

interface Pending {
  resolve(result: unknown): void
  reject(error: Error): void
}

type Handlers = { [Name in keyof Events]: (params: Events[Name]) => void }

/** A connection whose token or key was accepted. */
export class Connection {
  private readonly pending = new Map<number, Pending>()
  private last = 0

  private constructor(
    private readonly socket: WebSocket,
    private readonly handlers: Handlers,
  ) {
    socket.onmessage = (message) => this.received(JSON.parse(String(message.data)))
  }

  /**
   * Connect, with the token of the address, or with the key that this tab got before.
   *
   * The token leaves the address at once: it is then in no history and no bookmark.
   */
  static async open(handlers: Handlers, ended: (reason: string) => void): Promise<[Connection, Opened]> {
    const token = new URLSearchParams(location.hash.slice(1)).get('token')
    history.replaceState(null, '', location.pathname)
    const key = sessionStorage.getItem(KEY)
    const secrets = [...(token ? [{ token }] : []), ...(key ? [{ key }] : [])]
    let reason = 'Open the link that execserver console has printed: it counts once, for one tab.'
    for (const secret of secrets) {
      const socket = new WebSocket(`ws://${location.host}/api`)
      const closed = new Promise<never>((_, reject) => {
        socket.onclose = (event) => reject(new Error(event.reason || 'The console has ended.'))
      })
      try {
        await Promise.race([closed, new Promise((resolve) => { socket.onopen = resolve })])
        const connection = new Connection(socket, handlers)
        const opened = await Promise.race([closed, connection.request<Opened>('open', secret)])
        sessionStorage.setItem(KEY, opened.key)
        socket.onclose = (event) => connection.closed(event.reason || 'The console has ended.', ended)
        return [connection, opened]
      } catch (error) {
        reason = (error as Error).message
      }
    }
    throw new Error(reason)
  }

  /** Send a request; `signal` gives it up. */
  request<Result>(method: string, params: object, signal?: AbortSignal): Promise<Result> {
    const id = ++this.last
    return new Promise<Result>((resolve, reject) => {
      if (signal?.aborted) {
        reject(new Cancelled())
        return
      }
      const abort = (): void => {
        this.pending.delete(id)
        this.send({ id, method: 'cancel', params: { id } })
        reject(new Cancelled())
      }
      signal?.addEventListener('abort', abort, { once: true })
      const settled = (): void => signal?.removeEventListener('abort', abort)
      this.pending.set(id, {
        resolve: (result) => { settled(); resolve(result as Result) },
        reject: (error) => { settled(); reject(error) },
      })
      this.send({ id, method, params })
    })
  }

  private send(message: object): void {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message))
  }

  private received(message: Record<string, unknown>): void {
    if (message['event'] === 'processes') this.handlers.processes(message['params'] as Events['processes'])
    else if (message['event'] === 'approvals') this.handlers.approvals(message['params'] as Events['approvals'])
    const pending = this.pending.get(message['id'] as number)
    if (!pending) return
    this.pending.delete(message['id'] as number)
    const error = message['error'] as { kind: string; message: string } | undefined
    if (error) pending.reject(new RequestError(error.kind, error.message))
    else pending.resolve(message['result'])
  }

  private closed(reason: string, ended: (reason: string) => void): void {
    for (const each of this.pending.values()) each.reject(new Cancelled())
    this.pending.clear()
    ended(reason)
  }
}
