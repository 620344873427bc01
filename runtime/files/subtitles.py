"""Subtitles: SubRip, WebVTT and SubStation Alpha, whose timing and settings stay as they are.

Only the text of cues is replaced, at its place in the file: libraries for subtitles write the whole
file again, without the settings and comments that they do not know.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.fragments import FRAGMENT_TAG
from translate_trt.runtime.files.resources import TextSource
from translate_trt.runtime.files.segments import HAS_LETTER, FileText, ReadOptions, Segment
from translate_trt.runtime.files.xml_source import escape, unescape

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2})(?:[.,](\d{1,3}))?"
_TIMING = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}([ \t][^\r\n]*)?(?=\r?$)", re.MULTILINE)
# The begin of a line that is meant as timing.
_TIMING_START = re.compile(r"^[ \t]*-?\d+:\S*[ \t]*-->", re.MULTILINE)
_EVENT_TIME = re.compile(r"(\d+):(\d{2}):(\d{2})[.:](\d{1,3})\Z")
_BLANK_LINE = re.compile(r"\r?\n[ \t]*(?=\r?\n)|\Z")
_NUMBER = re.compile(r"(?:\A|[\r\n])[ \t]*\d+\Z")
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")

_ANGLE_TAG = re.compile(r"<[^<>\r\n]{1,200}>|\{\\[^{}\r\n]*\}")
_BRACE_TAG = re.compile(r"\{[^{}\r\n]*\}|\\h")
_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")
# Overrides that switch something on until another one switches it off.
_SWITCH = re.compile(r"\{\\([ibus])([01])\}")

# A sentence goes on in the next cue unless the cue ends like this, or there is a pause.
_SENTENCE_END = re.compile(r"""[.!?\u2026:\u3002\uff01\uff1f\u266a\])]["'\u2019\u201d\u00bb]*\Z""")
_SPEAKER = re.compile(r"(?:[-\u2010-\u2015]\s*|\u266a\s*|>>\s*|\[|\()")
_VOICE = re.compile(r"<v[.\s][^<>]*>")  # of a speaker, in WebVTT
_LONGEST_PAUSE = 1.5  # seconds
_MOST_CUES, _MOST_CHARACTERS = 6, 400

# Costs of dividing a sentence, in squares of its relative deviation from the source's division.
_COST_IN_CLAUSE, _COST_AT_COMMA = 0.02, 0.005
_COST_OF_SPEED, _COST_OF_LENGTH = 0.5, 0.5
_CLAUSE_END = re.compile(r"""[,;:.!?\u2026\u3001\u3002\uff0c\uff1b]["'\u2019\u201d\u00bb)]*\Z""")
_LINES = 2
# Parts times units of a longer text, whose time would grow with the cube of its length.
_MOST_STEPS = 10_000
# Texts without spaces may be divided between these characters, but not before closing marks.
_WIDE = re.compile(
    r"[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
    r"[\u3001\u3002\uff0c\uff01\uff1f\u300d\u300f\u30fc\u3063\u30c3\u2026]*|"
    r"[^\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)


class _Cue(NamedTuple):
    """A cue: its time in seconds, the range of its text in the file, and who or where it is."""

    start: float
    end: float
    begin: int
    stop: int
    voice: str = ""


@dataclass(frozen=True)
class _Syntax:
    """Syntax of the text of cues."""

    tag: re.Pattern[str]
    line_break: str
    decode: Callable[[str], str] = str
    encode: Callable[[str], str] = str

    def lines(self, text: str) -> list[str]:
        """Return the lines of a cue."""
        breaks = r"\\[Nn]" if self.line_break == "\\N" else r"\r\n|\n|\r"
        return re.split(breaks, text)


def read_srt(content: bytes, options: ReadOptions) -> FileText:
    """Read SubRip subtitles."""
    source = TextSource(content, options)
    syntax = _Syntax(_ANGLE_TAG, source.line_end)
    return _file_text(source, _timed_cues(source.text, True), syntax, options)


def read_vtt(content: bytes, options: ReadOptions) -> FileText:
    """Read WebVTT subtitles.

    Raises:
        InputError: The file does not begin with WEBVTT.
    """
    source = TextSource(content, options)
    if not source.text.startswith("WEBVTT"):
        raise InputError("does not begin with WEBVTT, as WebVTT must.")
    syntax = _Syntax(
        _ANGLE_TAG, source.line_end, html.unescape, lambda text: html.escape(text, quote=False)
    )
    return _file_text(source, _timed_cues(source.text, False), syntax, options)


def read_ass(content: bytes, options: ReadOptions) -> FileText:
    """Read subtitles of SubStation Alpha; drawings and comments stay as they are."""
    source = TextSource(content, options)
    return _file_text(source, list(_events(source.text)), _Syntax(_BRACE_TAG, "\\N"), options)


def _timed_cues(text: str, numbered: bool) -> list[_Cue]:
    """Find cues by their timing.

    Their text ends at the next timing or the number before it, and that of cues without numbers at
    a blank line, which many files with numbers have in cues.

    Raises:
        InputError: The timing of a cue cannot be read, or there is text but no cue.
    """
    cues = []
    timings = [*_TIMING.finditer(text)]
    limits = [*(timing.start() for timing in timings[1:]), len(text)]
    for found in _TIMING_START.finditer(text):
        if not _TIMING.match(text, found.start()):
            raise InputError(
                f"has a timing that cannot be read, {found[0].strip()!r}; write it like "
                "00:00:01,000 --> 00:00:02,000."
            )
    for found, limit in zip(timings, limits, strict=False):
        *times, settings = found.groups()
        begin = found.end()
        begin += 2 if text.startswith("\r\n", begin) else begin < len(text)
        stop = limit
        if not numbered and (blank := _BLANK_LINE.search(text, begin - 1)):
            stop = min(limit, max(begin, blank.start()))
        body = text[begin:stop].rstrip()
        if stop == limit < len(text):
            body = _NUMBER.sub("", body).rstrip()
        stop = begin + len(body)
        cues.append(
            _Cue(_seconds(times[:4]), _seconds(times[4:]), begin, stop, (settings or "").strip())
        )
    if not cues and re.search(r"-->|\d:\d\d", text):
        raise InputError(
            "has no cue whose timing can be read, such as 00:00:01,000 --> 00:00:02,000."
        )
    return cues


def _seconds(groups: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = groups
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return whole + int((fraction or "0").ljust(3, "0")) / 1000


def _events(text: str) -> Iterator[_Cue]:
    """Iterate over the dialogue of the section [Events], whose last field is text.

    Raises:
        InputError: An event does not have the fields that the section's Format names.
    """
    names: list[str] = []
    in_events = False
    for number, line in enumerate(_LINE.finditer(text), 1):
        body = line[1]
        kind, _, rest = body.partition(":")
        if body.startswith("["):
            in_events = body.strip().lower() == "[events]"
        elif in_events and kind.strip().lower() == "format":
            names = [name.strip().lower() for name in rest.split(",")]
        elif in_events and kind.strip().lower() == "dialogue":
            values = rest.split(",", len(names) - 1) if names else []
            if len(values) < len(names) or not names or names[-1] != "text":
                raise InputError(
                    f"has at line {number} an event without the fields of the line Format of "
                    "[Events]; open and save it with a subtitle editor."
                )
            of = dict(zip(names, values, strict=True))
            stop = line.end(1)
            times = [_EVENT_TIME.match(of.get(name, "").strip()) for name in ("start", "end")]
            if None in times:
                raise InputError(f"has at line {number} an event without start and end.")
            start, end = (_seconds(time.groups()) for time in times if time is not None)
            if not _DRAWING.search(of["text"]):
                voice = ",".join(of.get(name, "") for name in ("layer", "style", "name"))
                yield _Cue(start, end, stop - len(of["text"]), stop, voice)


# ---- cues to segments ----


class _Part(NamedTuple):
    """Text of a cue, or of one of its speakers, with tags around all of it."""

    cue: _Cue
    before: str
    text: str
    after: str
    is_last: bool


@dataclass
class _Group:
    """Parts of one or more cues whose text is translated together."""

    parts: list[_Part]
    numbers: list[int]
    tags: list[tuple[str, str]] = field(default_factory=list)

    @property
    def place(self) -> str:
        first, last = self.numbers[0] + 1, self.numbers[-1] + 1
        return f"cue {first}" if first == last else f"cues {first} to {last}"


def _file_text(
    source: TextSource, cues: Sequence[_Cue], syntax: _Syntax, options: ReadOptions
) -> FileText:
    text = source.text
    by_cue = [list(_parts(cue, text[cue.begin : cue.stop], syntax)) for cue in cues]
    groups = list(_groups(by_cue, syntax))
    segments = [_segment(group, syntax) for group in groups]

    def render(translations: Sequence[str]) -> bytes:
        texts: dict[int, list[str]] = {}
        changed = set()
        for group, segment, translation in zip(groups, segments, translations, strict=True):
            if translation != segment.text:
                changed.update(group.numbers)
                found = _divided(translation, segment.kind, group, syntax, options)
            else:
                found = [part.text for part in group.parts]
            for number, part, lines in zip(group.numbers, group.parts, found, strict=True):
                texts.setdefault(number, []).append(part.before + lines + part.after)
        for number in changed:
            cue = cues[number]
            source.replace(cue.begin, cue.stop, syntax.line_break.join(texts[number]))
        return source.render()

    return FileText(segments, render)


def _parts(cue: _Cue, text: str, syntax: _Syntax) -> Iterator[_Part]:
    """Divide a cue by its speakers, each of whom has lines that begin with a dash."""
    lines = syntax.lines(text)
    plain = [syntax.tag.sub("", line).lstrip() for line in lines]
    speakers = [bool(re.match(r"[-\u2010-\u2015]\s*\S", line)) for line in plain]
    if sum(speakers) > 1 and speakers[0]:
        starts = [number for number, is_speaker in enumerate(speakers) if is_speaker]
        turns = [lines[begin:end] for begin, end in itertools.pairwise([*starts, len(lines)])]
    else:
        turns = [lines]
    for turn in turns:
        whole = syntax.line_break.join(turn)
        before, body, after = _around(whole, syntax)
        dash = re.match(r"[-\u2010-\u2015]\s*", body) if len(turns) > 1 else None
        cut = dash.end() if dash else 0
        yield _Part(cue, before + body[:cut], body[cut:], after, turn is turns[-1])


def _around(text: str, syntax: _Syntax) -> tuple[str, str, str]:
    """Return the tags and white space before a text, the text, and those after it."""
    space = r"(?:\s|\\[Nn])*"
    match, end = re.match(space, text), len(text)
    begin = match.end() if match else 0
    while found := syntax.tag.match(text, begin):
        match = re.compile(space).match(text, found.end())
        begin = match.end() if match else found.end()
    while begin < end:
        body = text[begin:end].rstrip()
        end = begin + len(body)
        tags = list(syntax.tag.finditer(text, begin, end))
        if not tags or tags[-1].end() != end:
            break
        end = tags[-1].start()
    before, body, after = text[:begin], text[begin:end], text[end:]
    # Tags that begin before the text and end in it, or the other way round, stay in it.
    open_tags: list[str] = []
    for tag in syntax.tag.findall(body):
        if open_tags and tag.lower() == _end_of(open_tags[-1]):
            open_tags.pop()
        elif _begins(tag):
            open_tags.append(tag)
        elif _is_end(tag):
            return "", text, ""
    if open_tags and any(map(_is_end, syntax.tag.findall(after))):
        return "", text, ""
    return before, body, after


def _groups(by_cue: Sequence[Sequence[_Part]], syntax: _Syntax) -> Iterator[_Group]:
    """Join the parts of cues in which one sentence goes on."""
    group: _Group | None = None
    for number, parts in enumerate(by_cue):
        for part in parts:
            plain = syntax.tag.sub("", part.text).strip()
            if group is not None and _continues(group, part, plain, syntax):
                group.parts.append(part)
                group.numbers.append(number)
                continue
            if group is not None:
                yield group
            group = _Group([part], [number])
            if not HAS_LETTER.search(plain):
                yield group
                group = None
    if group is not None:
        yield group


def _continues(group: _Group, part: _Part, plain: str, syntax: _Syntax) -> bool:
    """Return True if the sentence of a group goes on in a part of the next cue."""
    last = group.parts[-1]
    if last.cue is part.cue or not last.is_last or last.cue.voice != part.cue.voice:
        return False
    text = syntax.tag.sub("", last.text).strip()
    voices = _VOICE.findall(last.before + last.text) + _VOICE.findall(part.before + part.text)
    return (
        bool(HAS_LETTER.search(plain))
        and not _SENTENCE_END.search(text)
        and len({*voices}) < 2
        and not _SPEAKER.match(syntax.tag.sub("", part.before + part.text).strip())
        and -0.1 <= part.cue.start - last.cue.end <= _LONGEST_PAUSE
        and len(group.parts) < _MOST_CUES
        and sum(len(one.text) for one in group.parts) + len(plain) <= _MOST_CHARACTERS
    )


def _segment(group: _Group, syntax: _Syntax) -> Segment:
    """Make the segment of a group: plain text if it has no tags inside, else a fragment."""
    texts = [
        " ".join(filter(None, map(str.strip, syntax.lines(part.text)))) for part in group.parts
    ]
    text = " ".join(filter(None, texts))
    if not syntax.tag.search(text):
        return Segment(syntax.decode(text), "text", group.place)
    pieces: list[str] = []
    open_tags: list[tuple[str, int]] = []
    at = 0
    for found in syntax.tag.finditer(text):
        pieces.append(escape(syntax.decode(text[at : found.start()])))
        at, tag = found.end(), found[0]
        if open_tags and tag.lower() == _end_of(open_tags[-1][0]):
            _, number = open_tags.pop()
            group.tags[number] = group.tags[number][0], tag
            pieces.append("</g>")
        else:
            number = len(group.tags)
            group.tags.append((tag, ""))
            if _begins(tag) and _is_ended(tag, text[at:], syntax):
                open_tags.append((tag, number))
                pieces.append(f'<g id="{number}">')
            else:
                pieces.append(f'<x id="{number}"/>')
    pieces.append(escape(syntax.decode(text[at:])))
    pieces += ["</g>" for _ in open_tags]
    return Segment("".join(pieces), "xml", group.place)


def _begins(tag: str) -> bool:
    switch = _SWITCH.fullmatch(tag)
    if switch:
        return switch[2] == "1"
    return bool(re.match(r"<[A-Za-z]", tag))


def _is_end(tag: str) -> bool:
    switch = _SWITCH.fullmatch(tag)
    return switch[2] == "0" if switch else tag.startswith("</")


def _end_of(tag: str) -> str:
    """Return the tag that ends what a tag begins, in lower case."""
    switch = _SWITCH.fullmatch(tag)
    if switch:
        return f"{{\\{switch[1]}0}}"
    name = re.match(r"<([A-Za-z]+)", tag)
    return f"</{name[1].lower()}>" if name else ""


def _is_ended(tag: str, text: str, syntax: _Syntax) -> bool:
    """Return True if a tag is ended in a text, without ends of tags before it in between."""
    depth = [tag]
    for found in syntax.tag.findall(text):
        if found.lower() == _end_of(depth[-1]):
            depth.pop()
            if not depth:
                return True
        elif found.startswith("</"):
            return False
        elif _begins(found):
            depth.append(found)
    return False


# ---- translations to cues ----


@dataclass
class _Unit:
    """A word, or a character of a text without spaces, with the tags beside it."""

    text: str
    space: bool  # before it
    is_wide: bool  # a character as wide as two letters
    may_begin: bool  # a line or cue
    before: list[int] = field(default_factory=list)  # numbers of tags
    after: list[int] = field(default_factory=list)  # numbers of tags that end

    @property
    def length(self) -> int:
        """Number of letters that are as wide, a space before it included."""
        return len(self.text) * (1 + self.is_wide) + self.space


def _divided(
    translation: str, kind: str, group: _Group, syntax: _Syntax, options: ReadOptions
) -> list[str]:
    """Divide a translation over the cues of a group, and each part over lines."""
    units = _units(translation, kind)
    parts = group.parts
    shares = [max(1, len(syntax.decode(syntax.tag.sub("", part.text)))) for part in parts]
    seconds = [max(0.001, part.cue.end - part.cue.start) for part in parts]
    most = options.line_length * _LINES

    def cost(number: int, length: int) -> float:
        fast = length / seconds[number] / options.reading_speed - 1
        return _COST_OF_SPEED * max(0.0, fast) ** 2 + _COST_OF_LENGTH * max(0, length / most - 1)

    texts = []
    open_tags: list[int] = []
    for begin, end in _division(units, shares, cost):
        own = units[begin:end]
        length = sum(unit.length for unit in own)
        count = math.ceil(length / options.line_length)
        lines = _division(own, [1] * count, lambda _, size: max(0, size / options.line_length - 1))
        rows, started = [], [*open_tags]
        for first, last in lines:
            row: list[str] = []
            for unit in own[first:last]:
                row.append(" " * (unit.space and bool(row)))
                row += (group.tags[number][0] for number in unit.before)
                open_tags += (number for number in unit.before if group.tags[number][1])
                row.append(syntax.encode(unit.text))
                for number in unit.after:
                    row.append(group.tags[number][1])
                    open_tags.remove(number)
            rows.append("".join(row))
        # Tags that go on in the next cue end in this one and begin again.
        before = "".join(group.tags[number][0] for number in started)
        after = "".join(group.tags[number][1] for number in reversed(open_tags))
        texts.append(before + syntax.line_break.join(filter(None, rows)) + after)
    return texts


def _units(translation: str, kind: str) -> list[_Unit]:
    """Return the words of a translation with their tags."""
    units: list[_Unit] = []
    waiting: list[int] = []
    open_tags: list[int] = []
    at, space = 0, False
    tags = FRAGMENT_TAG.finditer(translation) if kind == "xml" else ()
    for found in itertools.chain(tags, (None,)):
        text = translation[at : found.start() if found else None]
        for word in re.findall(r"\s+|\S+", unescape(text) if kind == "xml" else text):
            if word.isspace():
                space = True
                continue
            for unit in _WIDE.findall(word):
                wide = bool(re.match(r"[\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]", unit))
                units.append(_Unit(unit, space, wide, space or wide or not units, waiting))
                waiting, space = [], False
        if found is None:
            break
        at = found.end()
        if found[0] == "</g>":
            number = open_tags.pop()
            if number in waiting:  # around no word
                waiting.remove(number)
            elif units:
                units[-1].after.append(number)
        else:
            waiting.append(int(found[2]))
            if found[1] == "g":
                open_tags.append(int(found[2]))
    if waiting:
        units.append(_Unit("", False, False, False, waiting))
    return units


def _division(
    units: Sequence[_Unit], shares: Sequence[int], cost: Callable[[int, int], float]
) -> list[tuple[int, int]]:
    """Divide units into parts at good places.

    Dynamic programming over the ends of the parts. An end costs the square of its distance from
    where the source's part ended, relative to the whole, and more inside of a clause. Parts of a
    long text end before where the source's parts ended.

    Args:
        units: The units.
        shares: Relative lengths of the parts.
        cost: Returns the cost of a part by its number and its number of characters.

    Returns:
        Ranges of units. A part has no unit where there are fewer units than parts.
    """
    count, size = len(shares), len(units)
    lengths = list(itertools.accumulate((unit.length for unit in units), initial=0))
    total, whole = max(1, lengths[-1]), sum(shares)
    ideals = [share / whole for share in itertools.accumulate(shares)]
    ends = [place for place in range(1, size) if units[place].may_begin]
    if len(ends) < count - 1 or count <= 1:
        starts = [0, *ends[: max(0, count - 1)]]
        starts += [size] * (count - len(starts))
        return list(itertools.pairwise([*starts, size]))
    if count * size > _MOST_STEPS:
        offsets, index, starts = [lengths[place] for place in ends], -1, [0]
        for number, ideal in enumerate(ideals[:-1]):
            index = max(index + 1, bisect_right(offsets, ideal * total) - 1)
            index = min(index, len(ends) - count + 1 + number)
            starts.append(ends[index])
        return list(itertools.pairwise([*starts, size]))
    at_end = {}
    for place in ends:
        if not _CLAUSE_END.search(units[place - 1].text):
            at_end[place] = _COST_IN_CLAUSE
        elif units[place - 1].text[-1] in ".!?\u2026\u3002":
            at_end[place] = 0.0
        else:
            at_end[place] = _COST_AT_COMMA
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for number in range(count):
        found: dict[int, tuple[float, list[int]]] = {}
        for place in ends if number < count - 1 else [size]:
            here = 0.0
            if place < size:
                here = at_end[place] + (lengths[place] / total - ideals[number]) ** 2
            for before, (so_far, places) in best.items():
                if before < place:
                    value = so_far + here + cost(number, lengths[place] - lengths[before])
                    if place not in found or value < found[place][0]:
                        found[place] = value, [*places, place]
        best = found
    return list(itertools.pairwise([0, *best[size][1]]))
