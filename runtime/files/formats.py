"""The formats of files by suffix; the module of a format is imported when a file needs it."""

from __future__ import annotations

import importlib
from pathlib import PurePath
from typing import NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.segments import FileText, ReadOptions


class FileFormat(NamedTuple):
    """A format of files.

    Attributes:
        name: Name in messages and tables.
        suffixes: Suffixes of its files, in lower case.
        module: Module of this package with its function `read`, or that function's name after a
            colon.
        packages: Packages of the extra `files` that it imports.
        output_suffix: Suffix of the translation, if it has another.
        media_type: Media type of the translation.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    packages: tuple[str, ...] = ()
    output_suffix: str | None = None
    media_type: str = "text/plain"

    def read(self, content: bytes, options: ReadOptions) -> FileText:
        """Find the text in the content of a file.

        Raises:
            InputError: The content is damaged, encrypted, too large, or of another format.
        """
        if len(content) > options.max_bytes:
            raise InputError(
                f"has {len(content):,} bytes; files of more than {options.max_bytes:,} are refused "
                "(--max-file-mib)."
            )
        module, _, function = self.module.partition(":")
        try:
            loaded = importlib.import_module(f"{__package__}.{module}")
        except ModuleNotFoundError as error:
            if error.name not in self.packages:
                raise
            raise InputError(
                f"{self.name} needs {error.name}: pip install 'translate-trt[files]'."
            ) from error
        found: FileText = getattr(loaded, function or "read")(content, options)
        return found


_OOXML = "openxmlformats-officedocument"

_ALL = (
    FileFormat("plain text", (".txt", ".text"), "plain:read_text"),
    FileFormat("HTML", (".html", ".htm"), "plain:read_html", media_type="text/html"),
    FileFormat(
        "Markdown", (".md", ".markdown"), "markdown", ("markdown_it",), media_type="text/markdown"
    ),
    FileFormat("PDF", (".pdf",), "pdf", ("pypdf",), output_suffix=".txt"),
    FileFormat("SubRip", (".srt",), "subtitles:read_srt", media_type="application/x-subrip"),
    FileFormat("WebVTT", (".vtt",), "subtitles:read_vtt", media_type="text/vtt"),
    FileFormat("SubStation Alpha", (".ass", ".ssa"), "subtitles:read_ass"),
    *(
        FileFormat(name, suffixes, module, media_type=f"application/vnd.{media_type}")
        for name, suffixes, module, media_type in (
            ("Word", (".docx", ".dotx"), "ooxml", f"{_OOXML}.wordprocessingml.document"),
            ("PowerPoint", (".pptx", ".potx", ".ppsx"), "ooxml",
             f"{_OOXML}.presentationml.presentation"),
            ("Excel", (".xlsx", ".xltx"), "ooxml", f"{_OOXML}.spreadsheetml.sheet"),
            ("OpenDocument Text", (".odt", ".ott"), "opendocument", "oasis.opendocument.text"),
            ("OpenDocument Spreadsheet", (".ods", ".ots"), "opendocument",
             "oasis.opendocument.spreadsheet"),
            ("OpenDocument Presentation", (".odp", ".otp"), "opendocument",
             "oasis.opendocument.presentation"),
        )
    ),
    FileFormat("EPUB", (".epub",), "epub", media_type="application/epub+zip"),
    FileFormat("JSON", (".json",), "json_resources", media_type="application/json"),
    FileFormat("ARB", (".arb",), "json_resources:read_arb", media_type="application/json"),
    FileFormat("YAML", (".yaml", ".yml"), "yaml_resources", ("yaml",), media_type="text/yaml"),
    FileFormat("XLIFF", (".xlf", ".xliff"), "xliff", media_type="application/xliff+xml"),
    FileFormat("TMX", (".tmx",), "tmx", media_type="application/x-tmx+xml"),
    FileFormat(
        "Android strings", (".xml",), "xml_resources:read_resources", media_type="application/xml"
    ),
    FileFormat(".NET", (".resx",), "xml_resources:read_resx", media_type="application/xml"),
    FileFormat("Java properties", (".properties",), "properties"),
    FileFormat("Apple strings", (".strings",), "apple_strings"),
    FileFormat(
        "Apple stringsdict", (".stringsdict",), "apple_strings:read_dictionary",
        media_type="application/xml",
    ),
    FileFormat("Xcode catalogue", (".xcstrings",), "string_catalog", media_type="application/json"),
    FileFormat("PO", (".po", ".pot"), "gettext_catalog", media_type="text/x-gettext-translation"),
)  # fmt: skip

#: The formats by suffix.
FORMATS = {suffix: one for one in _ALL for suffix in one.suffixes}

# Formats that look like others: what to do about a file with such a suffix.
_ADVICE = {
    ".doc": "save it as .docx",
    ".xls": "save it as .xlsx",
    ".ppt": "save it as .pptx",
    ".docm": "it may have macros; save it as .docx",
    ".xlsm": "it may have macros; save it as .xlsx",
    ".pptm": "it may have macros; save it as .pptx",
    ".rtf": "save it as .docx or .odt",
    ".jsonl": "translate-trt translate --input-format jsonl reads it",
    ".ndjson": "translate-trt translate --input-format jsonl reads it",
    ".tsv": "translate-trt translate --input-format tsv reads it",
}


def format_of(path: str | PurePath, suffix: str | None = None) -> FileFormat:
    """Return the format of a file.

    Args:
        path: Path or name of the file.
        suffix: Suffix that stands for its format, with or without the dot; None for its own.

    Raises:
        InputError: No format has this suffix.
    """
    if suffix is None:
        suffix = PurePath(path).suffix
    suffix = f".{suffix.removeprefix('.').lower()}"
    if (found := FORMATS.get(suffix)) is not None:
        return found
    advice = _ADVICE.get(suffix, "name a format that its content has (--format)")
    raise InputError(
        f"{path}: {suffix} files are not translated: {advice}. Formats: {' '.join(sorted(FORMATS))}"
    )


def read_file_text(
    content: bytes, name: str | PurePath, options: ReadOptions | None = None
) -> FileText:
    """Find the text in a file, whose name tells its format.

    Raises:
        InputError: No format has the suffix, or the content is damaged, encrypted, too large, or of
            another format.
    """
    return format_of(name).read(content, options or ReadOptions())
