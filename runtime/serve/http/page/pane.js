// Texts as words that can be lit and chosen. Text reaches the page as text nodes alone.

import { wordsOf } from "./words.js";

// Confidence below which a word is marked, weakly and strongly.
const UNSURE = 0.5;
const DOUBTFUL = 0.25;

/**
 * A sentence and its translation.
 *
 * @typedef {object} Sentence
 * @property {string} before Text between the translation before and this one.
 * @property {string} source The sentence.
 * @property {string} text Its translation.
 * @property {?{text: string, confidence: number}[]} words Words of the translation.
 * @property {?[number, number][]} alignments Pairs of aligned words, from 0.
 */

/** A word on the page, with its sentence's number and its place among the server's words. */
function wordElement(word, sentence) {
  const element = document.createElement("span");
  element.className = "word";
  element.textContent = word.text;
  element.word = { ...word, sentence };
  return element;
}

function fill(element, text, language, sentence) {
  let end = 0;
  const nodes = [];
  const words = wordsOf(text, language).map((word) => {
    const one = wordElement(word, sentence);
    nodes.push(document.createTextNode(text.slice(end, word.begin)), one);
    end = word.begin + word.text.length;
    return one;
  });
  element.replaceChildren(...nodes, document.createTextNode(text.slice(end)));
  return words;
}

/** The mirror behind the text area, which has the same text as words. */
export class Mirror {
  /** @param {HTMLElement} element Element of the mirror. */
  constructor(element) {
    this.element = element;
    this.sentences = new Map();
    this.clear("");
  }

  /** Show a text without sentences; the last line break needs a character to be seen. */
  clear(text) {
    this.sentences.clear();
    this.end = 0;
    this.element.replaceChildren(document.createTextNode(`${text}\u200b`));
  }

  /** Make words of a sentence, which follows those before. */
  put(number, source, language) {
    const rest = this.element.lastChild;
    const begin = rest.data.indexOf(source);
    if (begin < 0 || source === "") {
      return; // the server has changed its white space
    }
    const element = document.createElement("span");
    this.sentences.set(number, fill(element, source, language, number));
    rest.before(rest.data.slice(0, begin), element);
    rest.data = rest.data.slice(begin + source.length);
  }

  /** Return the word at a point of the window, which the text area covers. */
  wordAt(x, y) {
    return document.elementsFromPoint(x, y).find((one) => this.element.contains(one) && one.word);
  }

  /** Light words of a sentence by their places. */
  light(number, places) {
    for (const one of this.element.querySelectorAll(".lit")) {
      one.classList.remove("lit");
    }
    for (const one of this.sentences.get(number) ?? []) {
      one.classList.toggle("lit", places.has(one.word.index));
    }
  }
}

/** The pane of the translation: one element for each sentence. */
export class TargetPane {
  /** @param {HTMLElement} element Element of the pane. */
  constructor(element) {
    this.element = element;
    /** @type {Sentence[]} */
    this.sentences = [];
    this.after = "";
    this.spans = [];
    this.tail = document.createTextNode("");
    element.append(this.tail);
  }

  /** The translation as text. */
  get text() {
    return this.sentences.map((one) => one.before + one.text).join("") + this.after;
  }

  /** All words in order. */
  get words() {
    return this.spans.flatMap((one) => one.words);
  }

  /** Mark what is shown as older than the text. */
  age() {
    for (const one of this.spans) {
      one.element.classList.add("stale");
    }
  }

  /** Show a sentence in the place of an older one. */
  put(number, sentence, language) {
    const separator = document.createTextNode(sentence.before);
    const element = document.createElement("span");
    element.className = "sentence";
    const words = fill(element, sentence.text, language, number);
    for (const one of words) {
      describe(one, sentence.words);
    }
    const old = this.spans[number];
    if (old === undefined) {
      this.tail.before(separator, element);
    } else {
      old.separator.replaceWith(separator);
      old.element.replaceWith(element);
    }
    this.spans[number] = { separator, element, words };
    this.sentences[number] = sentence;
    if (!this.element.querySelector('[tabindex="0"]') && words.length > 0) {
      words[0].tabIndex = 0;
    }
  }

  /** Remove older sentences beyond the last one, and show the text after it. */
  finish(count, after) {
    for (const one of this.spans.splice(count)) {
      one.separator.remove();
      one.element.remove();
    }
    this.sentences.length = count;
    this.after = after;
    this.tail.data = after;
  }

  /** Light words of a sentence by their places. */
  light(number, places) {
    for (const one of this.element.querySelectorAll(".lit")) {
      one.classList.remove("lit");
    }
    for (const one of this.spans[number]?.words ?? []) {
      one.classList.toggle("lit", places.has(one.word.index));
    }
  }

  /** Move the only tab stop of the pane to a word. */
  visit(element) {
    for (const one of this.element.querySelectorAll('[tabindex="0"]')) {
      one.tabIndex = -1;
    }
    element.tabIndex = 0;
    element.focus();
  }
}

function describe(element, confidences) {
  element.tabIndex = -1;
  element.setAttribute("role", "button");
  element.setAttribute("aria-haspopup", "menu");
  element.setAttribute("aria-expanded", "false");
  const confidence = confidences?.[element.word.index]?.confidence;
  if (confidence === undefined) {
    return;
  }
  element.word.confidence = confidence;
  element.classList.toggle("unsure", confidence < UNSURE);
  element.classList.toggle("doubtful", confidence < DOUBTFUL);
}
