// Questions of the host's approver, and their answers.

import { Cancelled, type Connection } from './connection.js'
import { button, h, visible } from './dom.js'
import type { Approval, Decision } from './protocol.js'

/** The order of the buttons; `rule` stands for an approval with a rule. */
const ORDER = ['accept', 'acceptForSession', 'rule', 'decline', 'cancel']

const WORDS: Record<string, string> = {
  accept: 'Approve',
  acceptForSession: 'Approve for the session',
  decline: 'Decline',
  cancel: 'Cancel the turn',
}

/** The place of a decision among the buttons. */
function place(decision: Decision): number {
  return ORDER.indexOf(typeof decision === 'string' ? decision : 'rule')
}

/** The text of the button of a decision. */
function textOf(decision: Decision): string {
  if (typeof decision === 'string') return WORDS[decision] ?? decision
  if ('acceptWithExecpolicyAmendment' in decision) {
    return `Approve, and always allow: ${visible(decision.acceptWithExecpolicyAmendment.execpolicy_amendment.join(' '))}`
  }
  return `Approve, and always allow the host ${visible(decision.applyNetworkPolicyAmendment.network_policy_amendment.host)}`
}

/** The open questions, each a card. */
export class Approvals {
  readonly element = h('section', { class: 'approvals', 'aria-label': 'Approvals', 'aria-live': 'polite', hidden: true })
  private readonly cards = new Map<number, HTMLElement>()

  constructor(private readonly connection: Connection) {}

  /** Show the questions that are open now. */
  update(approvals: Approval[]): void {
    for (const [id, card] of this.cards) {
      if (approvals.some((each) => each.id === id)) continue
      card.remove()
      this.cards.delete(id)
    }
    for (const each of approvals) {
      if (this.cards.has(each.id)) continue
      const card = this.card(each)
      this.cards.set(each.id, card)
      this.element.append(card)
    }
    this.element.hidden = approvals.length === 0
  }

  focus(): void {
    this.element.querySelector('button')?.focus()
  }

  private card(approval: Approval): HTMLElement {
    const reason = h('input', { type: 'text', 'aria-label': 'Reason of a refusal, for the model' })
    reason.placeholder = 'Reason of a refusal (optional)'
    const failure = h('p', { class: 'error', role: 'alert', hidden: true })
    const decisions = [...approval.decisions].sort((one, other) => place(one) - place(other))
    const buttons = decisions.map((decision) => {
      const kind = decision === 'accept' ? 'approve' : place(decision) > place('acceptForSession') + 1 ? 'refuse' : 'wider'
      return button(textOf(decision), () => void this.answer(approval, decision, reason.value, failure), { class: kind })
    })
    const what = approval.network
      ? `${visible(approval.network.host)}, port ${approval.network.port} (${visible(approval.network.protocol)})`
      : visible(approval.command) || approval.paths.map(visible).join(', ')
    const titles = { command: 'Run a command?', patch: 'Change files?', network: 'Reach a host?' }
    const facts: [string, string][] = [
      ['Folder', visible(approval.cwd)],
      ['Reason', visible(approval.reason ?? '')],
      ['Permits', approval.permits.map(visible).join('; ')],
      ['Again', approval.retry ? 'the sandbox denied the first attempt' : ''],
    ]
    return h(
      'article',
      { class: 'approval', 'data-approval': String(approval.id) },
      h('h2', {}, titles[approval.kind]),
      h('pre', { class: 'subject' }, what),
      approval.diff ? h('pre', { class: 'diff', tabindex: 0, 'aria-label': 'Changes' }, approval.diff) : null,
      h('dl', {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])),
      h('div', { class: 'decisions' }, ...buttons, reason),
      failure,
    )
  }

  private async answer(approval: Approval, decision: Decision, reason: string, failure: HTMLElement): Promise<void> {
    try {
      await this.connection.request('answer', { id: approval.id, decision, reason: reason || null })
    } catch (error) {
      if (error instanceof Cancelled) return
      failure.textContent = visible((error as Error).message)
      failure.hidden = false
    }
  }
}
