"""Translation of the segments of many files in one stream."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from translate_trt.runtime.errors import BackendError, InputError, TranslateTrtError
from translate_trt.runtime.files.formats import FileFormat, format_of
from translate_trt.runtime.files.segments import HAS_LETTER, FileText, ReadOptions, Segment
from translate_trt.runtime.files.xml_source import escape, unescape

if TYPE_CHECKING:
    from translate_trt.runtime.line_request import LineRequest
    from translate_trt.runtime.options import SearchOptions
    from translate_trt.runtime.text.glossary import Glossary
    from translate_trt.runtime.translator import Translator

# Characters of segments that are translated together at most, which bounds memory; one segment may
# have more.
_CHUNK_CHARACTERS = 1 << 18

# White space of XML, which is a single space to readers.
_LINE_SPACE = re.compile(r"[ \t\r\n]+")
# An element around a whole fragment, without tags in it, and an empty element at its ends.
_AROUND = re.compile(r"<([^\s/>]+)(?:\s[^<>]*)?>([^<>]*)</\1\s*>", re.DOTALL)
_UNTRANSLATED = re.compile(r"""<[^<>]*\stranslate\s*=\s*["']no["']""", re.IGNORECASE)
_EMPTY_BEFORE = re.compile(r"\s*<[^<>/!?][^<>]*/>\s*")
_EMPTY_AFTER = re.compile(r"<[^<>/!?][^<>]*/>\s*\Z")


class Origin(NamedTuple):
    """Source of a translation.

    Attributes:
        name: "model", "repeated" for one of an equal segment before, "exact" or "fuzzy" for one of
            a memory, or "none" for text that stays: without letters, or marked so.
        similarity: Similarity with the source in the memory, from 0 to 1.
    """

    name: str
    similarity: float = 1.0


class Translated(NamedTuple):
    """A translated segment."""

    text: str
    origin: Origin


class Memory(Protocol):
    """Translations that are used before the model."""

    def find(self, text: str, kind: str) -> Translated | None:
        """Return the translation of a text; None if the memory has none that is close enough."""


class SegmentPlan:
    """Texts of segments that need the model, each once, and the way back to the segments.

    Args:
        segments: Segments of one or more files.
        names: Name of each segment in error messages.
        memory: Translations that are used before the model.

    Attributes:
        texts: Texts to translate with the names of their first segments, by kind.
    """

    def __init__(
        self, segments: Sequence[Segment], names: Sequence[str], memory: Memory | None = None
    ) -> None:
        self._segments = segments
        self._cores = [_Core.of(segment) for segment in segments]
        self._found: dict[tuple[str, str], Translated] = {}
        self.texts: dict[str, dict[str, str]] = {}
        for core, name in zip(self._cores, names, strict=True):
            if not HAS_LETTER.search(core.text):
                self._found[core.key] = Translated(core.text, Origin("none"))
            elif core.key in self._found or core.text in self.texts.get(core.kind, {}):
                continue
            elif memory is not None and (known := memory.find(core.text, core.kind)) is not None:
                self._found[core.key] = known
            else:
                self.texts.setdefault(core.kind, {})[core.text] = name

    def finish(self, translations: Mapping[str, Sequence[str]]) -> list[Translated]:
        """Return one translation per segment, in order.

        Args:
            translations: Translations of `texts`, by kind.
        """
        found, model = dict(self._found), Origin("model")
        for kind, texts in self.texts.items():
            for text, translation in zip(texts, translations[kind], strict=True):
                found[kind, text] = Translated(translation, model)
        results = []
        for core, segment in zip(self._cores, self._segments, strict=True):
            translated = found[core.key]
            text = core.render(translated.text, segment.kind)
            results.append(Translated(text, translated.origin))
            if translated.origin is model:
                found[core.key] = Translated(translated.text, Origin("repeated"))
        return results


class SegmentTranslator:
    """Translation of segments with a bundle; equal ones are translated once.

    Args:
        translator: A loaded bundle.
        options: Search options; None uses the bundle's defaults.
        split_sentences: As in `Translator.translate`.
        unwrap: Join the lines of paragraphs of plain text first.
        terminology: Glossary.
        memory: Translations that are used before the model.
    """

    def __init__(
        self,
        translator: Translator,
        options: SearchOptions | None = None,
        *,
        split_sentences: bool | str = True,
        unwrap: bool = False,
        terminology: Glossary | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._translator, self._memory = translator, memory
        self._arguments: dict[str, Any] = {
            "options": options, "split_sentences": split_sentences, "terminology": terminology,
        }  # fmt: skip
        self._unwrap = unwrap

    def translate(self, segments: Sequence[Segment], names: Sequence[str]) -> list[Translated]:
        """Translate segments.

        Args:
            segments: Segments of one or more files.
            names: Name of each segment in error messages.

        Returns:
            One translation per segment, in order.

        Raises:
            TranslateTrtError: See `Translator.translate`.
        """
        plan = SegmentPlan(segments, names, self._memory)
        requests = [
            request_of(
                self._translator, kind, [*texts], [*texts.values()], unwrap=self._unwrap,
                **self._arguments,
            )
            for kind, texts in plan.texts.items()
        ]  # fmt: skip
        translations = self._translator.translate_requests(requests)
        found = {
            kind: [one.text for one in of_kind]
            for kind, of_kind in zip(plan.texts, translations, strict=True)
        }
        return plan.finish(found)


def request_of(
    translator: Translator,
    kind: str,
    texts: Sequence[str],
    names: Sequence[str],
    unwrap: bool = False,
    **arguments: Any,
) -> LineRequest:
    """Make the request of texts of one kind.

    Args:
        translator: The bundle.
        kind: Kind of the segments.
        texts: Texts of segments.
        names: Their names in error messages.
        unwrap: Join the lines of paragraphs of plain text.
        arguments: Further arguments of `Translator.request`.

    Raises:
        BackendError: libtranslate_trt is missing, and the texts have tags.
        InputError: The texts have tags, which a bundle without attention cannot place.
    """
    from translate_trt.runtime.line_names import LineNames
    from translate_trt.runtime.native import missing_library

    if kind != "text" and not _has_attention(translator):
        if translator.core is None:
            raise BackendError(missing_library("text with tags"))
        raise InputError(
            f"{names[0]} has tags in its text, which are placed by attention; export the bundle "
            "with --attention."
        )
    return translator.request(
        texts, names=LineNames(names), **kind_arguments(translator, kind, unwrap), **arguments
    )


def kind_arguments(translator: Translator, kind: str, unwrap: bool = False) -> dict[str, Any]:
    """Return the arguments of `Translator.request` for segments of a kind.

    Args:
        translator: The bundle.
        kind: Kind of the segments.
        unwrap: Join the lines of paragraphs of plain text.
    """
    unwrap = unwrap and kind == "text"
    markup: str | None = kind
    if kind == "text" and (unwrap or not _has_attention(translator)):
        markup = None
    return {"markup": markup, "document": kind != "xml", "unwrap": unwrap}


def _has_attention(translator: Translator) -> bool:
    return translator.core is not None and translator.target.contract.attention


class _Core(NamedTuple):
    """The part of a segment that is translated, and what is around it.

    Attributes:
        before: White space and tags before it.
        text: Its text, decoded if the segment is a fragment without tags in its text.
        after: White space and tags after it.
        kind: Kind of the text.
        written: The text as it is written in the segment.
    """

    before: str
    text: str
    after: str
    kind: str
    written: str

    @classmethod
    def of(cls, segment: Segment) -> _Core:
        """Leave out white space and tags around the text of a segment."""
        before, text, after = _outer_space(segment.text)
        if segment.kind != "xml":
            return cls(before, text, after, segment.kind, text)
        while "<" in text:
            if found := _AROUND.fullmatch(text):
                if _UNTRANSLATED.match(text):
                    return cls(before + text, "", after, "text", "")
                start, end = found.span(2)
            elif found := _EMPTY_BEFORE.match(text):
                start, end = found.end(), len(text)
            elif found := _EMPTY_AFTER.search(text):
                start, end = 0, found.start()
            else:
                return cls(before, text, after, "xml", text)
            space, inner, space_after = _outer_space(text[start:end])
            before += text[:start] + space
            after = space_after + text[end:] + after
            text = inner
        return cls(before, _LINE_SPACE.sub(" ", unescape(text)), after, "text", text)

    @property
    def key(self) -> tuple[str, str]:
        """Key of equal texts."""
        return self.kind, self.text

    def render(self, translation: str, kind: str) -> str:
        """Return the translation of the whole segment, which is of a kind."""
        if translation == self.text:
            body = self.written
        else:
            body = escape(translation) if kind != self.kind else translation
        return self.before + body + self.after


def _outer_space(text: str) -> tuple[str, str, str]:
    """Return the white space before a text, the text, and the white space after it."""
    body = text.lstrip()
    before = text[: len(text) - len(body)]
    text = body.rstrip()
    return before, text, body[len(text) :]


class FileTask(NamedTuple):
    """A file to translate.

    Attributes:
        name: Name in messages.
        read: Returns the content.
        format: Format of the content.
        write: Receives the translated file.
    """

    name: str
    read: Callable[[], bytes]
    format: FileFormat
    write: Callable[[bytes], None]


class FileOutcome(NamedTuple):
    """A file that was translated or failed.

    Attributes:
        name: Name of the file.
        segments: Its segments.
        translated: Their translations; empty if the file failed.
        error: Why the file failed; None if it was translated.
    """

    name: str
    segments: Sequence[Segment]
    translated: Sequence[Translated]
    error: TranslateTrtError | None = None


class _OpenFile(NamedTuple):
    task: FileTask
    text: FileText
    chunks: float


class FileTranslator:
    """Translation of files with batches across them, in bounded memory.

    Args:
        translate: Returns the translations of segments, which have a name each
            (`SegmentTranslator.translate`).
        options: Options of the formats.
        chunk_segments: Number of segments that are translated together.
    """

    def __init__(
        self,
        translate: Callable[[Sequence[Segment], Sequence[str]], list[Translated]],
        options: ReadOptions | None = None,
        chunk_segments: int = 1024,
    ) -> None:
        self._translate, self._options = translate, options or ReadOptions()
        self._chunk = chunk_segments

    def translate_content(self, content: bytes, name: str) -> bytes:
        """Translate the content of one file, whose name tells its format.

        Raises:
            InputError: The content cannot be read.
            TranslateTrtError: See `Translator.translate`.
        """
        text = format_of(name).read(content, self._options)
        names = [named_segment(name, segment) for segment in text.segments]
        return text.render([one.text for one in self._translated_all(text.segments, names)])

    def translate_files(self, tasks: Iterable[FileTask]) -> Iterator[FileOutcome]:
        """Translate files, each of which is written as soon as it is complete.

        A file that cannot be read or translated does not affect the others.

        Yields:
            The outcome of each file, in order.

        Raises:
            OptionError: The bundle was not compiled for an option.
            BackendError: The backend failed.
        """
        waiting: list[_OpenFile] = []
        for task in tasks:
            try:
                text = task.format.read(task.read(), self._options)
                opened = _OpenFile(task, text, _chunks(text.segments, self._chunk))
            except (InputError, MemoryError) as error:
                yield from self._finish(waiting)
                waiting = []
                yield _failure(task.name, (), error)
                continue
            waiting.append(opened)
            if sum(file.chunks for file in waiting) >= 1:
                yield from self._finish(waiting)
                waiting = []
        yield from self._finish(waiting)

    def _finish(self, files: Sequence[_OpenFile]) -> Iterator[FileOutcome]:
        """Translate files together and write them; one by one if that fails."""
        try:
            translated = self._translated_files(files)
        except InputError as error:
            if len(files) == 1:
                yield _failure(files[0].task.name, files[0].text.segments, error)
                return
            for file in files:
                yield from self._finish([file])
            return
        for file, found in zip(files, translated, strict=True):
            try:
                file.task.write(file.text.render([one.text for one in found]))
            except InputError as error:
                yield _failure(file.task.name, file.text.segments, error)
            else:
                yield FileOutcome(file.task.name, file.text.segments, found)

    def _translated_files(self, files: Sequence[_OpenFile]) -> list[list[Translated]]:
        segments = [segment for file in files for segment in file.text.segments]
        names = [
            named_segment(file.task.name, segment)
            for file in files
            for segment in file.text.segments
        ]
        found = iter(self._translated_all(segments, names))
        return [[next(found) for _ in file.text.segments] for file in files]

    def _translated_all(
        self, segments: Sequence[Segment], names: Sequence[str]
    ) -> list[Translated]:
        """Translate segments in chunks of bounded size."""
        count = math.ceil(_chunks(segments, self._chunk))
        found: list[Translated] = []
        for number in range(count):
            part = slice(len(segments) * number // count, len(segments) * (number + 1) // count)
            found += self._translate(segments[part], names[part])
        return found


def _chunks(segments: Sequence[Segment], size: int) -> float:
    """Return the number of chunks of segments, by their number and their characters."""
    characters = sum(len(segment.text) for segment in segments)
    return max(len(segments) / size, min(len(segments), characters / _CHUNK_CHARACTERS))


def named_segment(name: str, segment: Segment) -> str:
    """Return the name of a segment of a file in messages."""
    return f"{name}, {segment.place}" if segment.place else name


def _failure(name: str, segments: Sequence[Segment], error: Exception) -> FileOutcome:
    if isinstance(error, MemoryError):
        message = "is too large for this machine's memory."
    else:
        message = str(error).removeprefix(f"{name}: ").removeprefix(f"{name}, ")
    return FileOutcome(name, segments, (), InputError(f"{name}: {message}"))
