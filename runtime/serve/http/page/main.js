// The page: texts and languages in, translations out.

import { ServerError, alternatives, get, translate } from "./client.js";
import { offerFiles } from "./files.js";
import { Menu } from "./menu.js";
import { Mirror, TargetPane } from "./pane.js";
import { wordsOf } from "./words.js";

const AUTO = "auto";
const UNDETERMINED = "und"; // language of a text without words
const TYPING_PAUSE = 250; // milliseconds without a key after which a text is translated
const LONG = 400; // characters from which text is smaller
const CHOICES = 6;
const MOST_RETRIES = 5;

const $ = (id) => document.getElementById(id);
const source = $("source");
const sourceLanguage = $("source-language");
const targetLanguage = $("target-language");
const mirror = new Mirror($("mirror"));
const target = new TargetPane($("target"));
const menu = new Menu($("target").parentElement);

const settings = { charLimit: Infinity };
let languages = []; // of the server, as {code, name, targets}
let detects = false;
let running = null; // AbortController of the translation
let asking = null; // AbortController of alternatives
let timer = 0; // next translation
let retries = 0;
const unaligned = new Set(); // pairs of languages whose bundles have no attention

// ---- languages ----

function nameOf(code) {
  const known = languages.find((one) => one.code === code)?.name;
  if (known !== undefined) {
    return known;
  }
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code) ?? code;
  } catch {
    return code; // no language code
  }
}

function offer(select, choices, preferred) {
  const options = choices.map(([code, name]) => new Option(name, code));
  select.replaceChildren(...options);
  const codes = choices.map(([code]) => code);
  select.value = preferred.find((code) => codes.includes(code)) ?? codes[0] ?? "";
}

function offerTargets(preferred) {
  const from = languages.filter((one) => [AUTO, one.code].includes(sourceLanguage.value));
  const codes = [...new Set(from.flatMap((one) => one.targets))];
  const named = codes.map((code) => [code, nameOf(code)]);
  offer(targetLanguage, named.sort((a, b) => a[1].localeCompare(b[1])), preferred);
  showSwap();
}

function showSwap() {
  const from = sourceLanguage.value === AUTO ? detected() : sourceLanguage.value;
  const back = languages.find((one) => one.code === targetLanguage.value);
  $("swap").disabled = !back?.targets.includes(from);
}

function detected() {
  return sourceLanguage.options[0]?.dataset.detected ?? "";
}

function showDetected(code) {
  const [automatic] = sourceLanguage.options;
  if (automatic?.value === AUTO) {
    automatic.dataset.detected = code;
    automatic.label = code === "" ? "Detect language" : `Detected: ${nameOf(code)}`;
    showSwap();
  }
}

function remember() {
  try {
    localStorage.setItem("languages", pair());
  } catch {
    // Storage is switched off.
  }
}

function remembered() {
  try {
    return (localStorage.getItem("languages") ?? "").split(" ");
  } catch {
    return [];
  }
}

// ---- translation ----

function pair() {
  return `${sourceLanguage.value} ${targetLanguage.value}`;
}

function fields() {
  return {
    source: sourceLanguage.value,
    target: targetLanguage.value,
    ...(apiKey() && { api_key: apiKey() }),
  };
}

function schedule(delay) {
  clearTimeout(timer);
  timer = setTimeout(run, delay);
}

function changed(delay = TYPING_PAUSE) {
  running?.abort();
  asking?.abort();
  menu.close();
  retries = 0;
  mirror.clear(source.value);
  target.age();
  showCount();
  notify("");
  if (source.value.trim() === "") {
    clearTimeout(timer);
    run(); // there is nothing to wait for
  } else {
    schedule(delay);
  }
}

async function run() {
  const text = source.value;
  if (text.trim() === "" || lengthOf(text) > settings.charLimit || targetLanguage.value === "") {
    if (text.trim() === "") {
      target.finish(0, "");
      about("");
      showDetected("");
    }
    working(false);
    showTranslation();
    return;
  }
  if (lacksKey()) {
    return;
  }
  const here = new AbortController();
  running = here;
  working(true);
  try {
    let count = 0;
    mirror.clear(text);
    const query = { q: text, ...fields(), words: true, alignments: !unaligned.has(pair()) };
    for await (const [name, data] of translate(query, here.signal)) {
      if (here.signal.aborted) {
        return;
      }
      if (name === "translation") {
        mirror.put(count, data.source, sourceLanguage.value);
        target.put(count, data, targetLanguage.value);
        count += 1;
      } else if (name === "done") {
        target.finish(count, data.after);
        const { language = UNDETERMINED } = data.detectedLanguage ?? {};
        showDetected(language === UNDETERMINED ? "" : language);
        if (detected() !== "" && detected() === targetLanguage.value && turn()) {
          return;
        }
        about([data.model, inSeconds(data.seconds)].filter(Boolean).join(" · "));
        $("status").textContent = `Translated in ${inSeconds(data.seconds)}.`;
        retries = 0;
        notify("");
      }
      showTranslation();
    }
  } catch (error) {
    fail(error, here);
  } finally {
    if (running === here) {
      running = null;
      working(false);
    }
  }
}

/** Choose another target language than the detected one; return whether there is one. */
function turn() {
  const other = languages.find((one) => one.code === detected())?.targets.find((one) => one !== detected());
  if (other === undefined) {
    return false;
  }
  targetLanguage.value = other;
  showSwap();
  schedule(0);
  return true;
}

function fail(error, here) {
  if (here.signal.aborted) {
    return;
  }
  if (!(error instanceof ServerError)) {
    notify("The page has failed; reload it.");
    throw error;
  }
  if (error.status === 400 && !unaligned.has(pair())) {
    unaligned.add(pair());
    schedule(0);
    return;
  }
  if (error.status === 403) {
    showKey(true);
  }
  const again = error.retryAfter > 0 && retries < MOST_RETRIES;
  if (again) {
    retries += 1;
    schedule(1000 * error.retryAfter);
  }
  notify(again ? `${error.message} Trying again in ${inSeconds(error.retryAfter)}.` : error.message);
}

/** Return the fields of a file's translation; null if it cannot be asked for. */
function fileFields() {
  notify("");
  return targetLanguage.value === "" || lacksKey() ? null : fields();
}

function failFile(error) {
  if (error.status === 403) {
    showKey(true);
  }
  notify(error.message);
}

function inSeconds(seconds) {
  return `${seconds < 1 ? seconds.toFixed(2) : seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

// ---- what the page says ----

function working(is) {
  $("progress").hidden = !is;
  $("target").setAttribute("aria-busy", String(is));
}

/** Characters of a text as the server counts them: code points. */
function lengthOf(text) {
  return [...text].length;
}

function notify(message) {
  $("message").textContent = message;
  $("message").hidden = message === "";
}

function about(text) {
  $("about").textContent = text;
}

function showCount() {
  const count = lengthOf(source.value);
  const limit = settings.charLimit;
  const over = count > limit;
  $("count").textContent = Number.isFinite(limit)
    ? `${count.toLocaleString("en")} / ${limit.toLocaleString("en")}${over ? " characters are too many" : ""}`
    : count.toLocaleString("en");
  $("count").classList.toggle("over", over);
  $("clear").hidden = count === 0;
  document.querySelector(".card").classList.toggle("long", count > LONG);
}

function showTranslation() {
  const shown = target.text !== "";
  $("empty").hidden = shown;
  $("copy").hidden = !shown;
  $("hint").hidden = !shown;
  $("target").lang = targetLanguage.value;
  source.lang = sourceLanguage.value === AUTO ? detected() : sourceLanguage.value;
}

// ---- aligned words ----

function lightTarget(element) {
  const { sentence, index, confidence } = element.word;
  const pairs = target.sentences[sentence]?.alignments ?? [];
  const own = pairs.filter(([, to]) => to === index);
  target.light(sentence, new Set([index]));
  mirror.light(sentence, new Set(own.map(([from]) => from)));
  if (confidence !== undefined) {
    element.title = `Confidence ${Math.round(100 * confidence)} %`;
  }
}

function lightSource(element) {
  const { sentence, index } = element.word;
  const pairs = target.sentences[sentence]?.alignments ?? [];
  const own = pairs.filter(([from]) => from === index);
  mirror.light(sentence, new Set(own.length > 0 ? [index] : []));
  target.light(sentence, new Set(own.map(([, to]) => to)));
}

function darken() {
  mirror.light(-1, new Set());
  target.light(-1, new Set());
}

// ---- alternatives of a word ----

async function choose(element) {
  if (menu.isAt(element)) {
    menu.close(true);
    return;
  }
  const { sentence: number, begin } = element.word;
  const sentence = target.sentences[number];
  const prefix = sentence.text.slice(0, begin).trimEnd();
  asking?.abort();
  const here = new AbortController();
  asking = here;
  menu.open(element, "Looking for alternatives …");
  try {
    const query = {
      q: sentence.source,
      ...fields(),
      ...(detected() && { source: detected() }),
      prefix,
      count: CHOICES,
      words: true,
      alignments: !unaligned.has(pair()),
    };
    const found = (await alternatives(query, here.signal)).alternatives;
    if (!menu.isAt(element)) {
      return;
    }
    const others = distinct(found).filter((one) => !joins(one.text, prefix, begin));
    if (others.length < 2) {
      menu.say("Nothing else fits here as well.");
      return;
    }
    const choices = others.map((one) => choiceOf(one, sentence.text, element.word));
    menu.show(choices, targetLanguage.value, (chosen) => {
      menu.close();
      take(number, { ...sentence, ...others[chosen] }, begin);
    });
  } catch (error) {
    if (!here.signal.aborted && menu.isAt(element)) {
      menu.say(error instanceof ServerError ? error.message : "The alternatives cannot be shown.");
    }
  }
}

/** Leave out alternatives with the same text. */
function distinct(found) {
  const texts = found.map((one) => one.text);
  return found.filter((one, number) => one.text !== "" && texts.indexOf(one.text) === number);
}

/** Whether a text goes on within the word before the one that was clicked. */
function joins(text, prefix, begin) {
  return begin > prefix.length && /^[\p{L}\p{M}\p{N}]/u.test(text.slice(prefix.length));
}

/** The text from the word that was clicked, or from the first that differs before it. */
function choiceOf(found, shown, word) {
  const language = targetLanguage.value;
  const before = wordsOf(shown, language);
  const words = wordsOf(found.text, language);
  const clicked = before.findIndex((one) => one.begin === word.begin);
  const differs = words.findIndex((one, place) => one.text !== before[place]?.text);
  const first = words[differs < 0 ? clicked : Math.min(clicked, differs)] ?? words.at(-1);
  const end = first.begin + first.text.length;
  return {
    head: found.text.slice(first.begin, end),
    rest: found.text.slice(end),
    percent: 100 * found.probability,
    current: found.text === shown,
  };
}

/** Replace the translation of a sentence, and go on from the word that was chosen. */
function take(number, sentence, begin) {
  target.put(number, sentence, targetLanguage.value);
  darken();
  const words = target.spans[number].words;
  const next = words.find((one) => one.word.begin >= begin) ?? words.at(-1);
  if (next !== undefined) {
    target.visit(next);
    lightTarget(next);
  }
  $("status").textContent = `The translation is now: ${sentence.text}`;
}

// ---- API key ----

function apiKey() {
  return $("key").value;
}

/** Ask for a key if the server wants one and there is none. */
function lacksKey() {
  const lacks = settings.keyRequired && apiKey() === "";
  if (lacks) {
    showKey(true);
    notify("This server wants an API key.");
  }
  return lacks;
}

function showKey(is) {
  $("key-form").hidden = !is;
  $("key-toggle").hidden = false;
  $("key-toggle").setAttribute("aria-expanded", String(is));
}

// ---- events ----

source.addEventListener("input", (event) => {
  changed(event.inputType === "insertFromPaste" ? 0 : TYPING_PAUSE);
});
source.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    changed(0);
  }
});
source.addEventListener("pointermove", (event) => {
  const word = event.pointerType === "touch" ? null : mirror.wordAt(event.clientX, event.clientY);
  if (word) {
    lightSource(word);
  } else {
    darken();
  }
});
source.addEventListener("pointerleave", darken);

const wordOf = (event) => event.target.closest?.(".word");
$("target").addEventListener("pointerover", (event) => {
  const word = wordOf(event);
  if (word) {
    lightTarget(word);
  }
});
$("target").addEventListener("pointerleave", darken);
$("target").addEventListener("focusin", (event) => {
  const word = wordOf(event);
  if (word?.matches(":focus-visible")) {
    lightTarget(word);
  }
});
$("target").addEventListener("focusout", darken);
$("target").addEventListener("click", (event) => {
  const word = wordOf(event);
  const selects = document.getSelection()?.toString() !== "";
  if (word && !selects && running === null) {
    choose(word);
  }
});
$("target").addEventListener("keydown", (event) => {
  const word = wordOf(event);
  const words = target.words;
  const now = words.indexOf(word);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };
  if (now < 0) {
    return;
  }
  const backwards = getComputedStyle($("target")).direction === "rtl" && /Left|Right/.test(event.key);
  if (event.key === "Enter" || event.key === " ") {
    choose(word);
  } else if (event.key in steps) {
    const next = words[now + (backwards ? -1 : 1) * steps[event.key]];
    if (next) {
      target.visit(next);
    }
  } else if (event.key === "Escape") {
    menu.close(true);
  } else {
    return;
  }
  event.preventDefault();
});

sourceLanguage.addEventListener("change", () => {
  offerTargets([targetLanguage.value]);
  remember();
  changed(0);
});
targetLanguage.addEventListener("change", () => {
  showSwap();
  remember();
  changed(0);
});
$("swap").addEventListener("click", () => {
  const from = sourceLanguage.value === AUTO ? detected() : sourceLanguage.value;
  const translated = target.text;
  sourceLanguage.value = targetLanguage.value;
  offerTargets([from]);
  remember();
  if (translated !== "") {
    source.value = translated;
  }
  changed(0);
  source.focus();
});
$("clear").addEventListener("click", () => {
  source.value = "";
  changed(0);
  source.focus();
});
$("copy").addEventListener("click", async () => {
  const button = $("copy");
  await copy(target.text);
  button.classList.add("done");
  $("status").textContent = "The translation has been copied.";
  setTimeout(() => button.classList.remove("done"), 1500);
});
$("key-toggle").addEventListener("click", () => {
  showKey($("key-form").hidden);
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    sessionStorage.setItem("key", apiKey());
  } catch {
    // Storage is switched off.
  }
  showKey(false);
  changed(0);
});

/** Copy a text; browsers have no clipboard for pages without TLS that are not on this machine. */
async function copy(text) {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// ---- start ----

async function start() {
  try {
    const [given, found] = await Promise.all([get("frontend/settings"), get("languages")]);
    Object.assign(settings, given);
    languages = found;
  } catch (error) {
    if (!(error instanceof ServerError)) {
      throw error;
    }
    notify(`${error.message} Trying again …`);
    setTimeout(start, 1000 * Math.max(1, error.retryAfter));
    return;
  }
  notify("");
  detects = settings.language.source.code === AUTO;
  const [from, to] = remembered();
  const sources = languages.filter((one) => one.targets.length > 0);
  const named = sources.map((one) => [one.code, one.name]);
  const automatic = detects ? [[AUTO, "Detect language"]] : [];
  offer(sourceLanguage, [...automatic, ...named], [from, settings.language.source.code]);
  offerTargets([to, settings.language.target.code]);
  try {
    $("key").value = sessionStorage.getItem("key") ?? "";
  } catch {
    // Storage is switched off.
  }
  $("key-toggle").hidden = !settings.apiKeys;
  if (settings.keyRequired && apiKey() === "") {
    showKey(true);
  }
  if (settings.filesTranslation) {
    offerFiles(settings.supportedFilesFormat, fileFields, failFile);
  }
  changed(0);
}

start();
