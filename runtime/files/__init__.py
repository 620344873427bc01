"""Translation of files: what of a file is text, and the file with that text translated."""

from __future__ import annotations

from translate_trt.runtime.files.formats import FORMATS, format_of, read_file_text
from translate_trt.runtime.files.segments import FileText, ReadOptions, Segment
from translate_trt.runtime.files.translation import FileTranslator, SegmentTranslator

__all__ = [
    "FORMATS",
    "FileText",
    "FileTranslator",
    "ReadOptions",
    "Segment",
    "SegmentTranslator",
    "format_of",
    "read_file_text",
]
