// The styles of xterm under a policy that permits no inline styles.
//
// xterm writes <style> elements and `style` attributes. Under `style-src 'self'` the browser ignores both; it takes
// style sheets and declarations that a script makes as objects. So an element `style` is replaced by one whose
// text becomes such a sheet, and the attribute by declarations.

class SheetElement {
  private readonly sheet = new CSSStyleSheet()
  private readonly element: HTMLSpanElement

  constructor(create: typeof document.createElement) {
    this.element = create.call(document, 'span')
    this.element.hidden = true
    document.adoptedStyleSheets.push(this.sheet)
    Object.defineProperty(this.element, 'textContent', { set: (text: string) => this.sheet.replaceSync(text) })
    Object.defineProperty(this.element, 'remove', { value: () => this.remove() })
  }

  get asStyle(): HTMLElement {
    return this.element
  }

  private remove(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== this.sheet)
    this.element.parentNode?.removeChild(this.element)
  }
}

/** Replace what xterm uses to add styles. Called once, before the first terminal. */
export function adoptStyles(): void {
  const create = document.createElement
  const createElement = (tag: string, options?: ElementCreationOptions): HTMLElement =>
    tag.toLowerCase() === 'style' ? new SheetElement(create).asStyle : create.call(document, tag, options)
  document.createElement = createElement as typeof document.createElement

  const setAttribute = Element.prototype.setAttribute
  Element.prototype.setAttribute = function (name: string, value: string): void {
    if (name === 'style' && this instanceof HTMLElement) this.style.cssText = value
    else setAttribute.call(this, name, value)
  }
}
