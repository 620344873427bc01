// The menu of alternatives under a word.

const MARGIN = 8;

/** A menu below a word, which the keyboard can walk through. */
export class Menu {
  /** @param {HTMLElement} pane Positioned element that the menu lies in. */
  constructor(pane) {
    this.pane = pane;
    this.element = null;
    this.word = null;
    document.addEventListener("pointerdown", (event) => {
      if (!this.element?.contains(event.target) && event.target !== this.word) {
        this.close();
      }
    });
  }

  /** Whether the menu is open below a word. */
  isAt(word) {
    return this.word === word;
  }

  /** Open the menu below a word, with a message. */
  open(word, message) {
    this.close();
    this.word = word;
    word.setAttribute("aria-expanded", "true");
    this.element = document.createElement("div");
    this.element.className = "menu";
    this.element.setAttribute("role", "menu");
    this.element.setAttribute("aria-label", `Instead of ${word.textContent}`);
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
    this.pane.append(this.element);
    this.say(message);
  }

  /** Replace the content by a message. */
  say(message) {
    const paragraph = document.createElement("p");
    paragraph.setAttribute("role", "status");
    paragraph.textContent = message;
    this.element?.replaceChildren(paragraph);
    this.#place();
  }

  /**
   * Show the choices.
   *
   * @param {{head: string, rest: string, percent: number, current: boolean}[]} choices
   * @param {string} language Language code of the choices.
   * @param {(number: number) => void} choose Called with the number of the chosen one.
   */
  show(choices, language, choose) {
    const buttons = choices.map((choice, number) => {
      const button = document.createElement("button");
      const text = document.createElement("span");
      const head = document.createElement("b");
      const share = document.createElement("span");
      button.type = "button";
      button.className = choice.current ? "choice current" : "choice";
      button.setAttribute("role", "menuitemradio");
      button.setAttribute("aria-checked", String(choice.current));
      button.tabIndex = number === 0 ? 0 : -1;
      text.className = "continuation";
      text.dir = "auto";
      text.lang = language;
      head.textContent = choice.head;
      text.append(head, document.createTextNode(choice.rest));
      share.className = "note";
      share.textContent = choice.percent < 1 ? "< 1 %" : `${Math.round(choice.percent)} %`;
      button.append(text, share);
      button.addEventListener("click", () => choose(number));
      return button;
    });
    const keeps = this.element.contains(document.activeElement) || document.activeElement === this.word;
    this.element.replaceChildren(...buttons);
    this.#place();
    if (keeps) {
      buttons[0]?.focus({ preventScroll: true });
    }
  }

  /** Close the menu; `refocus` gives the word the focus again. */
  close(refocus = false) {
    const word = this.word;
    this.element?.remove();
    this.element = null;
    this.word = null;
    word?.setAttribute("aria-expanded", "false");
    if (refocus) {
      word?.focus();
    }
  }

  #place() {
    if (this.element === null) {
      return;
    }
    const pane = this.pane.getBoundingClientRect();
    const [line] = this.word.getClientRects();
    const begin = line.left - pane.left - MARGIN;
    const most = pane.width - this.element.offsetWidth - MARGIN;
    this.element.style.left = `${Math.max(MARGIN, Math.min(begin, most))}px`;
    this.element.style.top = `${line.bottom - pane.top + MARGIN}px`;
  }

  #onKey(event) {
    const buttons = [...this.element.querySelectorAll("button")];
    const now = buttons.indexOf(document.activeElement);
    const steps = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: buttons.length - 1 };
    if (event.key === "Escape" || event.key === "Tab") {
      this.close(true);
    } else if (event.key in steps && buttons.length > 0) {
      buttons[(steps[event.key] + buttons.length) % buttons.length].focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
