"""Compare the speed of a document with that of its plain text, and watch memory over many files.

    python benchmarks/files.py --bundle DIR --source train.en [--target onnx-int8] [--pages 1000]
        [--files 10000]

A document of Word has the lines of the text, five in a paragraph and 500 words on a page; a word of
every fifth paragraph is bold. The plain text is the same paragraphs, as lines of
`Translator.translate`. Then files of one line each are translated, with the resident memory after
the first tenth and at the end.
"""

from __future__ import annotations

import io
import itertools
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from xml.sax.saxutils import escape

import psutil
from harness import Report, alternate, benchmark, compared, main, option, read_text, seconds_of

from translate_trt.runtime import Translator
from translate_trt.runtime.files import FileTranslator, SegmentTranslator, format_of
from translate_trt.runtime.files.translation import FileTask

SENTENCES, WORDS, BOLD = 5, 500, 5  # of a paragraph, of a page, paragraphs per bold word
CHUNK = 1024
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override '
    'PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'wordprocessingml.document.main+xml"/></Types>'
)
_BODY = (
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
    "{}</w:body></w:document>"
)


def paragraphs(lines: list[str], pages: int) -> Iterator[str]:
    """Iterate over paragraphs until the pages are full."""
    words, endless = 0, itertools.cycle(lines)
    while words < pages * WORDS:
        paragraph = " ".join(itertools.islice(endless, SENTENCES))
        words += len(paragraph.split())
        yield paragraph


def document(texts: list[str]) -> bytes:
    """Make a document of Word."""

    def run(text: str, properties: str = "") -> str:
        return f'<w:r>{properties}<w:t xml:space="preserve">{escape(text)}</w:t></w:r>'

    body = []
    for number, text in enumerate(texts):
        first, _, rest = text.partition(" ")
        bold, _, rest = rest.partition(" ")
        runs = run(text)
        if number % BOLD == 0:
            runs = run(f"{first} ") + run(bold, "<w:rPr><w:b/></w:rPr>") + run(f" {rest}")
        body.append(f"<w:p>{runs}</w:p>")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("word/document.xml", _BODY.format("".join(body)))
    return file.getvalue()


@benchmark(
    "files",
    "bundle source target",
    option("--pages", type=int, default=1000, help="pages of the document"),
    option("--files", type=int, default=10_000, help="files whose memory is watched"),
)
def files(given: Namespace) -> Report:
    """Measure a document, its text, and the memory of many files."""
    lines = read_text(given.source)
    texts = list(paragraphs(lines, given.pages))
    content, memory = document(texts), []
    with Translator(given.bundle, given.target, threads=1, workers=given.threads) as translator:
        translate = SegmentTranslator(translator).translate
        parts = [texts[at : at + CHUNK] for at in range(0, len(texts), CHUNK)]
        ways = {
            "text": lambda: [translator.translate(part, split_sentences=True) for part in parts],
            "docx": lambda: FileTranslator(translate).translate_content(content, "a.docx"),
        }
        samples = alternate({name: seconds_of(way) for name, way in ways.items()}, given.rounds)
        endless = itertools.cycle(lines)
        tasks = (
            FileTask(str(number), next(endless).encode, format_of("a.txt"), lambda _: None)
            for number in range(given.files)
        )
        for number, _ in enumerate(FileTranslator(translate).translate_files(tasks), 1):
            if number in (given.files // 10, given.files):
                memory.append(psutil.Process().memory_info().rss >> 20)
    results = {"seconds": compared(samples, "text"), "resident_mib": memory}
    return Report(results, {"pages": given.pages, "files": given.files}, samples)


if __name__ == "__main__":
    main(__doc__)
