"""The web page of the HTTP server, in a headless Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.browser import browser, running
from support.paths import ROOT

from translate_trt.runtime import SearchOptions, Translator

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from translate_trt.runtime.serve.http.app import create_app
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.served_bundle import BundleSource

FILES = ROOT / "runtime/serve/http/page"
LIMIT = 300
TEXT = "the cat runs. a dog sleeps."
HARMFUL = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


def test_text_reaches_the_page_as_text_nodes_alone() -> None:
    for path in FILES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc",
            text,
        )
        assert not found, path.name


def test_the_page_needs_no_other_host_and_no_inline_script() -> None:
    for path in (*FILES.glob("*.js"), *FILES.glob("*.css"), FILES / "index.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"https?://(?!www\.w3\.org)", text), path.name
    html = (FILES / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", html)


@dataclass
class Opened:
    """A page, with what must not happen in it."""

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _on_console(self, message: Any) -> None:
        # Chromium reports every refused request, which the tests below provoke.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def open(self) -> Any:
        self.page.goto(self.url)
        self.page.wait_for_selector("#target-language option", state="attached")
        self.page.select_option("#source-language", "en")
        return self.page

    def type(self, text: str) -> None:
        self.page.fill("#source", text)

    def translated(self) -> str:
        """The translation, once it is complete."""
        self.page.wait_for_selector("#target[aria-busy=false] .sentence:not(.stale)")
        found: str = self.page.locator("#target").inner_text()
        return found

    def check(self) -> None:
        assert not self.problems
        assert all(url.startswith(self.url) for url in self.asked)


@pytest.fixture(scope="module")
def bundle(word_bundle: Path) -> Path:
    return word_bundle


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[str]:
    sources = [BundleSource(bundle, "en-de", ("en", "de")),
               BundleSource(bundle, "de-en", ("de", "en"))]  # fmt: skip
    limits = {"max_characters": LIMIT, "max_file_characters": LIMIT}
    settings = HttpSettings(workers=1, threads=1, **limits)
    with running(create_app(sources, settings)) as url:
        yield url


@pytest.fixture(scope="module")
def translator(bundle: Path) -> Iterator[Translator]:
    with Translator(bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture
def opened(chromium: Any, server: str) -> Iterator[Opened]:
    context = chromium.new_context(viewport={"width": 1180, "height": 720}, locale="en")
    context.set_default_timeout(10_000)
    one = Opened(context.new_page(), server)
    yield one
    context.close()
    one.check()


def events(*sentences: tuple[str, str], **done: Any) -> str:
    """An answer of /translate/stream."""
    found = ""
    for index, (source, text) in enumerate(sentences):
        fields = {"index": index, "before": " " if index else "", "source": source, "text": text,
                  "words": [{"text": word, "confidence": 0.9} for word in text.split()],
                  "alignments": []}  # fmt: skip
        found += f"event: translation\ndata: {json.dumps(fields)}\n\n"
    done = {"after": "", "model": "fake", "seconds": 0.1, **done}
    return f"{found}event: done\ndata: {json.dumps(done)}\n\n"


def answer(page: Any, pattern: str, body: str, status: int = 200, **headers: str) -> None:
    """Answer requests in place of the server."""
    kind = "text/event-stream" if body.startswith("event:") else "application/json"
    page.route(
        pattern,
        lambda route: route.fulfill(
            status=status, body=body, headers={"Content-Type": kind, **headers}
        ),
    )


def settings_for_pages(source: str, target: str = "en", keys: bool = False) -> str:
    """An answer of /frontend/settings."""
    languages = {"source": {"code": source}, "target": {"code": target}}
    return json.dumps({"charLimit": LIMIT, "apiKeys": keys, "keyRequired": keys,
                       "language": languages})  # fmt: skip


pytestmark = pytest.mark.slow


def test_what_is_typed_is_translated(opened: Opened, translator: Translator) -> None:
    page = opened.open()
    page.locator("#source").press_sequentially("the cat runs.")
    page.wait_for_selector("#mirror .word >> text=runs.", state="attached")
    assert opened.translated() == translator.translate(["the cat runs."])[0].text
    assert "en-de" in page.locator("#about").inner_text()
    assert page.locator("#count").inner_text() == f"13 / {LIMIT}"
    page.click("#clear")
    assert page.locator("#target").inner_text() == ""


def test_aligned_words_light_each_other(opened: Opened, translator: Translator) -> None:
    (found,) = translator.translate(["the cat runs."], alignments=True)
    alignment = found.hypotheses[0].alignment
    assert alignment is not None
    source, target = alignment.pairs()[0]
    page = opened.open()
    opened.type("the cat runs.")
    opened.translated()
    word = page.locator("#target .word").nth(target)
    word.hover()
    assert page.locator("#mirror .word").nth(source).get_attribute("class") == "word lit"
    assert "lit" in word.get_attribute("class")
    assert re.fullmatch(r"Confidence \d+ %", word.get_attribute("title"))
    box = page.locator("#mirror .word").nth(source).bounding_box()
    page.mouse.move(0, 0)
    assert page.locator(".lit").count() == 0
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "lit" in word.get_attribute("class")


@pytest.mark.nightly
def test_another_word_continues_the_translation(opened: Opened, translator: Translator) -> None:
    page = opened.open()
    opened.type("the cat runs.")
    shown = opened.translated()
    options = SearchOptions(beam_size=4, alternatives=6)
    texts = [one.text for one in translator.translate(["the cat runs."], options)[0].hypotheses]
    others = [one for one in dict.fromkeys(texts) if one and one != shown]
    page.locator("#target .word").first.click()
    page.wait_for_selector(".choice")
    choices = page.locator(".choice")
    number = next(n for n in range(choices.count())
                  if "current" not in (choices.nth(n).get_attribute("class") or ""))  # fmt: skip
    wanted = choices.nth(number).locator(".continuation").inner_text()
    choices.nth(number).click()
    assert page.locator("#target").inner_text() == wanted
    assert wanted in others
    assert page.locator(".menu").count() == 0
    assert page.evaluate("document.activeElement.className").startswith("word")


@pytest.mark.nightly
def test_the_keyboard_suffices(opened: Opened) -> None:
    page = opened.open()
    answer(page, "**/alternatives", json.dumps({"alternatives": [
        {"text": "ein Hund schläft", "probability": 0.6, "words": [], "alignments": []},
        {"text": "ein Tier schläft", "probability": 0.3, "words": [], "alignments": []},
    ], "model": "fake", "seconds": 0.1}))  # fmt: skip
    answer(page, "**/translate/stream", events(("a dog sleeps", "ein Hund schläft")))
    page.keyboard.type("a dog sleeps")
    opened.translated()
    for _ in range(3):  # clear, the translation's first word
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('word')"):
            break
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "Hund"
    page.keyboard.press("Enter")
    page.wait_for_selector(".choice:focus")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "Hund"
    page.keyboard.press("Enter")
    page.wait_for_selector(".choice:focus")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#target").inner_text() == "ein Tier schläft"
    named = {"Swap languages": "button", "Copy the translation": "button",
             "Text to translate": "textbox", "Source language": "combobox"}  # fmt: skip
    for name, role in named.items():
        assert page.get_by_role(role, name=name).count() == 1


def test_text_stays_text(opened: Opened) -> None:
    page = opened.open()
    images = page.evaluate("document.images.length")
    answer(page, "**/translate/stream", events((HARMFUL, HARMFUL), model=HARMFUL))
    answer(page, "**/alternatives", json.dumps({"alternatives": [
        {"text": HARMFUL, "probability": 0.6}, {"text": HARMFUL + "!", "probability": 0.1},
    ]}))  # fmt: skip
    opened.type(HARMFUL)
    assert opened.translated() == HARMFUL
    page.locator("#target .word").first.click()
    page.wait_for_selector(".choice")
    assert page.evaluate("document.images.length") == images
    assert page.evaluate("document.scripts.length") == 1
    assert HARMFUL in page.locator("#about").inner_text()


# A drop of the file a.txt on the card.
DROP = """(text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], "a.txt"));
  const options = { dataTransfer: data, bubbles: true, cancelable: true };
  return document.querySelector("#source").dispatchEvent(new DragEvent("drop", options));
}"""


@pytest.mark.parametrize("dropped", [False, True], ids=["chosen", "dropped"])
def test_a_file_is_translated_and_downloaded(
    opened: Opened, translator: Translator, dropped: bool
) -> None:
    page = opened.open()
    page.set_viewport_size({"width": 320, "height": 640})
    if dropped:
        assert page.evaluate(DROP, TEXT) is False  # the browser does not open it
    else:
        with page.expect_file_chooser() as chosen:
            page.get_by_role("button", name="Translate a file").press("Enter")
        assert ".txt" in page.locator("#file-input").get_attribute("accept")
        name = f"{'long' * 20}.txt"
        chosen.value.set_files({"name": name, "mimeType": "", "buffer": TEXT.encode()})
    link = page.get_by_role("link", name="Download")
    link.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename.endswith("_de.txt")
    expected = translator.translate_document(TEXT, split_sentences="en").text
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected
    assert page.locator("#message").is_hidden()


def test_a_file_is_cancelled_or_refused(opened: Opened) -> None:
    page = opened.open()
    held: list[Any] = []
    page.route("**/translate_file", lambda route: held.append(route))
    with page.expect_request("**/translate_file"):
        page.evaluate(DROP, TEXT)
    page.get_by_role("button", name="Cancel").press("Enter")
    assert page.locator("#file").is_hidden()
    assert page.evaluate("document.activeElement.id") == "file-choose"
    page.unroute("**/translate_file")
    page.evaluate(DROP, "a" * (LIMIT + 1))
    page.wait_for_selector("#message >> text=too long")
    assert page.locator("#file").is_hidden()


@pytest.mark.nightly
def test_an_older_translation_never_replaces_a_newer_one(opened: Opened) -> None:
    page = opened.open()
    held: list[Any] = []
    page.route("**/translate/stream", lambda route: held.append(route))
    with page.expect_request("**/translate/stream"):
        opened.type("one")
    with page.expect_request("**/translate/stream"):
        opened.type("two")
    page.wait_for_timeout(0)  # lets playwright call the handler
    held[1].fulfill(body=events(("two", "zwei")), content_type="text/event-stream")
    page.wait_for_selector("#target .word >> text=zwei")
    held[0].abort()
    assert opened.translated() == "zwei"


REFUSALS = {
    413: ("too many characters", "The text is too long for this server. It says: too many"),
    500: ("out of memory", "The server could not translate this. It says: out of memory"),
    504: ("not translated within 60 s", "The translation took too long."),
    403: ("Invalid API key", "The server wants a valid API key."),
}


@pytest.mark.nightly
def test_refusals_are_said_in_words(opened: Opened) -> None:
    page = opened.open()
    for status, (said, message) in REFUSALS.items():
        answer(page, "**/translate/stream", json.dumps({"error": said}), status)
        opened.type(f"the cat runs {status}.")
        page.wait_for_selector(f"#message:has-text('{message}')")
        assert page.locator("#message").inner_text().startswith(message)
        assert page.locator("#key-form").is_visible() == (status == 403)
        page.unroute("**/translate/stream")


@pytest.mark.nightly
def test_a_key_is_asked_for_and_sent(opened: Opened) -> None:
    page = opened.page
    answer(page, "**/frontend/settings", settings_for_pages("en", "de", keys=True))
    answer(page, "**/translate/stream", events(("a", "b")))
    opened.open()
    opened.type("a")
    page.wait_for_selector("#message:has-text('This server wants an API key.')")
    assert not [url for url in opened.asked if "stream" in url]
    page.fill("#key", "secret")
    with page.expect_request("**/translate/stream") as sent:
        page.press("#key", "Enter")
    assert sent.value.post_data_json["api_key"] == "secret"
    assert opened.translated() == "b"
    assert page.locator("#key-form").is_hidden()


@pytest.mark.nightly
def test_a_busy_server_is_asked_again(opened: Opened) -> None:
    page = opened.open()
    statuses = [429, 503]

    def refuse(route: Any) -> None:
        if statuses:
            route.fulfill(
                status=statuses.pop(0), headers={"Retry-After": "1"}, json={"error": "busy"}
            )
        else:
            route.fulfill(body=events(("a", "b")), content_type="text/event-stream")

    page.route("**/translate/stream", refuse)
    opened.type("a")
    page.wait_for_selector("#message >> text=The server is busy. Trying again in 1.0 s.")
    page.wait_for_selector("#message >> text=The server is starting or shutting down.")
    page.wait_for_selector("#target .word >> text=b")
    page.wait_for_selector("#message", state="hidden")


@pytest.mark.nightly
def test_texts_over_the_limit_are_not_sent(opened: Opened) -> None:
    page = opened.open()
    sent = [url for url in opened.asked if "translate" in url]
    opened.type("a" * (LIMIT + 1))
    assert "characters are too many" in page.locator("#count").inner_text()
    page.wait_for_timeout(2 * 250)
    assert sent == [url for url in opened.asked if "translate" in url]


@pytest.mark.nightly
def test_languages_are_swapped_with_the_texts(opened: Opened) -> None:
    page = opened.open()
    opened.type("the cat runs.")
    shown = opened.translated()
    page.click("#swap")
    assert page.input_value("#source") == shown
    assert page.input_value("#source-language") == "de"
    assert page.input_value("#target-language") == "en"
    page.reload()
    page.wait_for_selector("#target-language option", state="attached")
    assert page.input_value("#source-language") == "de"


@pytest.mark.nightly
def test_a_detected_language_is_named_and_never_translated_into_itself(opened: Opened) -> None:
    page = opened.page
    answer(page, "**/frontend/settings", settings_for_pages("auto"))
    asked: list[str] = []

    def translate(route: Any) -> None:
        asked.append(route.request.post_data_json["target"])
        found = {"confidence": 99.0, "language": "en"}
        body = events(("a", "b"), detectedLanguage=found)
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/translate/stream", translate)
    page.goto(opened.url)
    page.wait_for_selector("#target-language option", state="attached")
    opened.type("a")
    assert opened.translated() == "b"
    page.wait_for_selector("#source-language option[label='Detected: English']", state="attached")
    page.wait_for_selector("#about >> text=fake")
    assert asked == ["en", "de"]
    assert page.input_value("#target-language") == "de"


@pytest.mark.nightly
def test_a_bundle_without_attention_translates_without_alignments(opened: Opened) -> None:
    page = opened.open()
    asked: list[bool] = []

    def refuse(route: Any) -> None:
        asked.append(route.request.post_data_json["alignments"])
        if asked[-1]:
            route.fulfill(status=400, json={"error": "export with --attention"})
        else:
            route.fulfill(body=events(("a", "b")), content_type="text/event-stream")

    page.route("**/translate/stream", refuse)
    opened.type("a")
    assert opened.translated() == "b"
    assert asked == [True, False]
    assert page.locator("#message").is_hidden()


@pytest.mark.nightly
def test_the_api_is_described(opened: Opened) -> None:
    page = opened.open()
    page.get_by_role("link", name="API").click()
    page.wait_for_selector(".route")
    found = page.locator(".route h2").all_inner_texts()
    assert found[0].split() == ["POST", "/translate"]
    assert len(found) == len(page.request.get(f"{opened.url}openapi.json").json()["paths"])
    assert page.locator(".route").first.locator("td >> text=alignments").count() == 1
