"""Formats of the lines that commands read and write: text, JSON lines, TSV.

A format turns each line of an input into a record: the texts to translate, and the output line that
their translations give. For `translate-trt score`, a line has the translations as well. All other
fields and columns of a line are copied as they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.json_lines import json_reason
from translate_trt.runtime.line_request import EXCLUSIONS, check_exclusions
from translate_trt.runtime.results import TextHypothesis, Translation

# Numbers are only checked, never written, and integers of any size are valid JSON.
_JSON = json.JSONDecoder(parse_int=float)
_JSON_SPACE = " \t\n\r"
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {
    str: "a string",
    bool: "true or false",
    float: "a number",
    list: "a list",
    dict: "an object",
}
_NAME_REMEDY = "choose another name with --output-field, or add --replace-field to replace it"
_MOST_CHARACTERS = 300  # of the names in a message

# Options of lines and documents that exclude others, beside what excludes each other in any
# request, and why.
_EXCLUSIONS = (
    ("document", ("targets", "alignments", "tsv", "scores_of_text"), "they are of lines"),
    ("document", ("translate_all",), "a document keeps text without letters"),
    ("markup", ("unwrap", "words"), "tags leave the text before it is translated"),
)


def check_line_options(values: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Refuse options of lines or documents that exclude each other, or need another.

    Args:
        values: Values by name; None and False are not given.
        names: Names in error messages, where they differ.

    Raises:
        OptionError: Options do not go together.
    """
    if values["unwrap"] and not values["document"]:
        raise OptionError(
            f"{names.get('unwrap', 'unwrap')} needs {names.get('document', 'document')}: lines of "
            "the input are translated alone."
        )
    check_exclusions((*_EXCLUSIONS, *EXCLUSIONS), values, names)


def check_column(name: str, column: str | None, header: bool) -> None:
    """Refuse a column of TSV that no row can have.

    Args:
        name: Name of the option.
        column: Number of the column, from 1, or its name.
        header: Whether the input has names of columns.

    Raises:
        OptionError: The column is missing, or has a name although there is no header.
    """
    if not column or (column.isdecimal() and int(column) == 0):
        raise OptionError(
            f"{name} is {column or 'missing'}; give the number of a TSV column, from 1."
        )
    if not column.isdecimal() and not header:
        raise OptionError(
            f"{name} is {column}; a column has a name only if the input has a header: add "
            "--header, or give the number of the column."
        )


class Record(NamedTuple):
    """A line of an input.

    Attributes:
        texts: Texts to translate, in order; a text may be blank.
        render: Returns the output line of the translations of `texts`; None for no line.
        given: Translations that the line has, as many as `texts`; empty unless the format reads
            them.
        constraints: Phrases that each translation must have, likewise.
    """

    texts: Sequence[str]
    render: Callable[[Sequence[Translation]], str | None]
    given: Sequence[str] = ()
    constraints: Sequence[Sequence[str]] = ()


class RecordFormat(Protocol):
    """A format of input and output lines."""

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """Iterate over the records of an input, one per line.

        Args:
            lines: Lines without line ends.
            name: Name of the input, for messages.

        Raises:
            InputError: A line is not of the format, or lacks the text.
        """


@dataclass(frozen=True)
class TextFormat:
    """Lines of text.

    Attributes:
        form: Returns the output line of a source and its translation.
    """

    form: Callable[[str, Translation], str]

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        for line in lines:
            yield Record((line,), partial(self._render, line))

    def _render(self, line: str, translations: Sequence[Translation]) -> str:
        return self.form(line, translations[0])


@dataclass(frozen=True)
class JsonLinesFormat:
    """JSON lines: one object per line; blank lines stay.

    The text is a string, a list of strings, or null, and so is what is added. Added fields are
    inserted into the line, which keeps the spelling of numbers and everything else.

    Attributes:
        field: Name of the field to translate.
        added: Value of a translation by the name of an added field.
        replace: Existing fields of these names are replaced; otherwise they are an error.
        remedy: What to do about such a field, in the message of the error.
        given_field: Name of the field with the translation, which has the form of the text; None
            if lines have none.
        constraints_field: Name of the field with the phrases that the translation must have: a list
            of strings, or a list of such lists if the text is a list; null for none. None if lines
            have none.
    """

    field: str
    added: Mapping[str, Callable[[Translation], Any]]
    replace: bool = False
    remedy: str = _NAME_REMEDY
    given_field: str | None = None
    constraints_field: str | None = None

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        for number, line in enumerate(lines, start=1):
            if line.strip(_JSON_SPACE):
                yield self._record(line, f"{name}, line {number}")
            else:
                yield _unchanged(line)

    def _record(self, line: str, where: str) -> Record:
        members = _object(line, where)
        value, given = _value(members, self.field, "--field", where), None
        if self.given_field is not None:
            given = _value(members, self.given_field, "--translation-field", where)
            value, given = self._pairs(value, given, where)
        for name in self.added:
            if name in members and not self.replace:
                raise InputError(f"{where} already has a field {name!r}; {self.remedy}.")
        phrases = self._phrases(members, value, where)
        spans = _spans(line) if self.added.keys() & members.keys() else {}
        return Record(_listed_texts(value), partial(self._render, line, value, spans),
                      _listed_texts(given), phrases)  # fmt: skip

    def _phrases(self, members: Mapping[str, Any], value: Any, where: str) -> list[list[str]]:
        """Return the phrases of each text that is not null."""
        if (field := self.constraints_field) is None:
            return []
        if field not in members:
            raise InputError(
                f"{where} has no field {field!r}; it has {_listed(members)}. Name one with "
                "--constraints-field; null stands for no phrases."
            )
        phrases = members[field]
        if not isinstance(value, list):
            return [] if value is None else [_phrase_list(phrases, field, where)]
        lists = [None] * len(value) if phrases is None else phrases
        if not isinstance(lists, list) or len(lists) != len(value):
            raise InputError(
                f"{where}: the field {self.field!r} has {_count(value)}, so {field!r} must be a "
                "list of as many lists of phrases, or null. Correct the line."
            )
        return [
            _phrase_list(own, field, where)
            for text, own in zip(value, lists, strict=True)
            if text is not None
        ]

    def _pairs(self, value: Any, given: Any, where: str) -> tuple[Any, Any]:
        """Return a text and its translation, or lists of them, null where either is."""
        texts, translations = _as_list(value), _as_list(given)
        one_is_null = value is None or given is None
        if not one_is_null and (isinstance(value, list) != isinstance(given, list)
                                or len(texts) != len(translations)):  # fmt: skip
            raise InputError(
                f"{where}: the fields {self.field!r} and {self.given_field!r} have "
                f"{_count(value)} and {_count(given)}; each text must have its translation. "
                "Correct the line."
            )
        if one_is_null:
            return None, None
        if not isinstance(value, list):
            return value, given
        pairs = [
            (None, None) if text is None or translation is None else (text, translation)
            for text, translation in zip(texts, translations, strict=True)
        ]
        return [text for text, _ in pairs], [translation for _, translation in pairs]

    def _render(
        self,
        line: str,
        value: Any,
        spans: Mapping[str, tuple[int, int]],
        translations: Sequence[Translation],
    ) -> str:
        values = {}
        for name, of in self.added.items():
            found = map(of, translations)
            if isinstance(value, list):
                new: Any = [None if text is None else next(found) for text in value]
            else:
                new = None if value is None else next(found)
            values[name] = json.dumps(new, ensure_ascii=False)
        end = line.rindex("}")
        members = (
            f", {json.dumps(name, ensure_ascii=False)}: {text}"
            for name, text in values.items()
            if name not in spans
        )
        line = line[:end] + "".join(members) + line[end:]
        # From the last to the first, so that the positions of the others remain.
        for name, (begin, after) in sorted(spans.items(), key=lambda item: item[1], reverse=True):
            if name in values:
                line = line[:begin] + values[name] + line[after:]
        return line


def _value(members: Mapping[str, Any], field: str, flag: str, where: str) -> Any:
    """Return the text, texts or null of a field."""
    if field not in members:
        raise InputError(
            f"{where} has no field {field!r}; it has {_listed(members)}. Name one with {flag}."
        )
    value = members[field]
    for text in _as_list(value):
        if not isinstance(text, str | None):
            raise InputError(
                f"{where}: the field {field!r} {'has' if isinstance(value, list) else 'is'} "
                f"{_kind(text)}; it must be a string, a list of strings, or null. Correct the "
                f"line, or name another field with {flag}."
            )
    if isinstance(value, list):
        return [text and encodable(text) for text in value]
    return value and encodable(value)


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can escape and UTF-8 cannot encode."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _phrase_list(value: Any, field: str, where: str) -> list[str]:
    """Return the phrases of one text."""
    phrases = [] if value is None else value
    if not isinstance(phrases, list):
        problem = f"is {_kind(value)}"
    elif others := [phrase for phrase in phrases if not isinstance(phrase, str)]:
        problem = f"has {_kind(others[0])} among the phrases of a text"
    else:
        return [_SURROGATE.sub("\ufffd", phrase) for phrase in phrases]
    raise InputError(
        f"{where}: the field {field!r} {problem}; it must be a list of strings, or null, for each "
        "text. Correct the line, or name another field with --constraints-field."
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _listed_texts(value: Any) -> list[str]:
    return [text for text in _as_list(value) if text is not None]


def _count(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else "one text"


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = _JSON.decode(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is not JSON ({json_reason(error)}); JSON lines have an object in each line. "
            "Correct the line, or translate plain text without --input-format."
        ) from error
    if not isinstance(value, dict):
        raise InputError(
            f"{where} is {_kind(value)}, not an object; JSON lines have an object in each line."
        )
    return value


def _spans(line: str) -> dict[str, tuple[int, int]]:
    """Return begin and end of the value of each field of an object, which must be valid."""
    spans = {}
    at = _after_space(line, line.index("{") + 1)
    while line[at] != "}":
        name, at = _JSON.raw_decode(line, at)
        begin = _after_space(line, _after_space(line, at) + 1)  # after the colon
        _, end = _JSON.raw_decode(line, begin)
        spans[name] = begin, end
        at = _after_space(line, end)
        if line[at] == ",":
            at = _after_space(line, at + 1)
    return spans


def _after_space(line: str, at: int) -> int:
    while line[at] in _JSON_SPACE:
        at += 1
    return at


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


@dataclass
class TsvFormat:
    """Tab-separated columns without quoting, of the inputs of one output; empty lines stay.

    The first row determines the number of columns of all inputs. The output has the header once.

    Attributes:
        column: Number of the column to translate, from 1, or its name in the header.
        has_header: The first row of each input has the names of its columns.
        added: Value of a translation by the name of an added column.
        replace: Existing columns of these names are replaced; otherwise they are an error.
        given_column: Column with the translation, likewise; None if rows have none.
        remedy: What to do about a column with the name of an added one, in messages.
    """

    column: int | str
    has_header: bool
    added: Mapping[str, Callable[[Translation], str]]
    replace: bool = False
    given_column: int | str | None = None
    remedy: str = _NAME_REMEDY
    _layout: _Layout | None = field(default=None, init=False)
    _header: str | None = field(default=None, init=False)

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        header_is_next = self.has_header
        for number, line in enumerate(lines, start=1):
            where = f"{name}, line {number}"
            if line and header_is_next:
                header_is_next = False
                yield self.header_record(line, where)
            else:
                yield self.row_record(line, where)

    def row_record(self, line: str, where: str) -> Record:
        """Return the record of a row after the header.

        Args:
            line: A row; an empty one stays.
            where: Name of the row, for messages.

        Raises:
            InputError: The row has another number of columns than the first.
        """
        if not line:
            return _unchanged(line)
        cells = line.split("\t")
        layout = self._layout = self._layout or self._new_layout(cells, where)
        if len(cells) != layout.columns:
            raise InputError(
                f"{where} has {_columns(cells)}, but the first row has {layout.columns}; "
                "columns are separated by single tabs, which quotes do not protect. "
                "Correct the line."
            )
        given = [] if layout.given is None else [cells[layout.given]]
        return Record([cells[layout.text]], partial(self._render, cells, layout), given)

    def header_record(self, line: str, where: str) -> Record:
        """Return the record of a header, which has no output line after the first input's.

        Raises:
            InputError: The header lacks a column, or is not that of the first input.
        """
        if self._header is None:
            cells = line.split("\t")
            self._header = line
            self._layout = self._new_layout(cells, where)
            names = self._filled(cells, self._layout, {name: name for name in self.added})
            return Record([], lambda _: names)
        if line != self._header:
            raise InputError(
                f"{where}: the header is not that of the first input; translate inputs with "
                "different columns one by one."
            )
        return Record([], lambda _: None)

    def _new_layout(self, cells: list[str], where: str) -> _Layout:
        text, given = _index(cells, self.column, "--column", where), None
        if self.given_column is not None:
            given = _index(cells, self.given_column, "--translation-column", where)
        replaced = {name: cells.index(name) for name in self.added if name in cells}
        if not self.has_header:
            replaced = {}
        for name in replaced:
            if not self.replace:
                raise InputError(f"{where} already has a column {name!r}; {self.remedy}.")
        return _Layout(len(cells), text, given, replaced)

    def _render(
        self, cells: list[str], layout: _Layout, translations: Sequence[Translation]
    ) -> str:
        return self._filled(
            cells, layout, {name: of(translations[0]) for name, of in self.added.items()}
        )

    def _filled(self, cells: list[str], layout: _Layout, values: Mapping[str, str]) -> str:
        new = list(cells)
        for name, value in values.items():
            if name in layout.replaced:
                new[layout.replaced[name]] = value
            else:
                new.append(value)
        return "\t".join(new)


class _Layout(NamedTuple):
    """Number of columns, indices of the text and translation, and of replaced columns by name."""

    columns: int
    text: int
    given: int | None
    replaced: Mapping[str, int]


def _index(cells: list[str], column: int | str, flag: str, where: str) -> int:
    """Return the index of a column that is given by its number from 1, or by its name."""
    if isinstance(column, int):
        if column > len(cells):
            raise InputError(
                f"{where} has {_columns(cells)}, so column {column} is missing; name another one "
                f"with {flag}."
            )
        return column - 1
    if cells.count(column) != 1:
        found = "several columns" if column in cells else "no column"
        raise InputError(
            f"{where} has {found} {column!r}; the header has {_listed(cells)}. Name another one "
            f"with {flag}, or give its number."
        )
    return cells.index(column)


def translation_columns(
    name: str,
    count: int,
    scores: bool = False,
    pharaoh: Callable[[TextHypothesis], str] | None = None,
) -> dict[str, Callable[[Translation], str]]:
    """Return the added columns of TSV: each hypothesis, with its score and alignment.

    Args:
        name: Name of the column of translations, from which the others are made.
        count: Maximum number of hypotheses per translation.
        scores: Add a column of scores for each.
        pharaoh: Returns the alignment of a hypothesis in Pharaoh format; None adds none.
    """
    columns = {}
    for rank in range(count):
        ranked = name + (f"_{rank + 1}" if rank else "")
        columns[ranked] = of_hypothesis(rank, lambda found: found.text)
        if scores:
            columns[f"{ranked}_score"] = of_hypothesis(rank, lambda found: f"{found.score:.6f}")
        if pharaoh is not None:
            columns[f"{ranked}_alignments"] = of_hypothesis(rank, pharaoh)
    return columns


def of_hypothesis(rank: int, cell: Callable[[TextHypothesis], str]) -> Callable[[Translation], str]:
    """Return the cell of a hypothesis; empty if a translation has fewer, as of a blank line."""

    def of(translation: Translation) -> str:
        hypotheses = translation.hypotheses
        return cell(hypotheses[rank]) if rank < len(hypotheses) else ""

    return of


def _columns(cells: Sequence[str]) -> str:
    return "1 column" if len(cells) == 1 else f"{len(cells)} columns"


def _listed(names: Iterable[str]) -> str:
    # As literals, since names may contain control characters, which a terminal would obey.
    listed = ", ".join(map(repr, names)) or "none"
    return listed if len(listed) <= _MOST_CHARACTERS else f"{listed[:_MOST_CHARACTERS]}..."


def _unchanged(line: str) -> Record:
    return Record([], lambda _: line)
