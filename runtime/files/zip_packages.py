"""Packed documents: zip files whose parts are XML, read within bounds, and written again.

Office documents and e-books are edited as XML with positions (`XmlSource`), not by python-docx,
openpyxl, odfpy or ebooklib: these know a part of each format and write every part anew, so that
parts without text change and elements that they do not know are lost.
"""

from __future__ import annotations

import copy
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.fragments import Fragment
from translate_trt.runtime.files.segments import FileText, ReadOptions, Segment
from translate_trt.runtime.files.xml_source import XmlSource

_MAX_PARTS = 100_000
_DIRECTORY_ENTRY = b"PK\x01\x02"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DAMAGED = "is damaged, or not of the format that its name says"
# VBA of Microsoft's programs; modules of OpenDocument, not the empty lists of a library.
_MACROS = re.compile(
    r"(?i).*/vba(?:Project|Data)[^/]*|Basic/.*/(?!script-l|dialog-l)[^/]+|Scripts/.+"
)


class Package:
    """A zip file in memory.

    Attributes:
        names: Names of its parts, in order.
    """

    def __init__(self, content: bytes, options: ReadOptions) -> None:
        """Read the directory of a package.

        Raises:
            InputError: The file is no zip file, encrypted, too large unpacked, or has macros.
        """
        if content.startswith(_OLE):
            raise InputError(
                "is encrypted, or of the binary format of old versions of Office; open it there, "
                "and save it without a password in the current format."
            )
        if content.count(_DIRECTORY_ENTRY) > _MAX_PARTS:
            raise InputError(f"has more than {_MAX_PARTS:,} parts.")
        self._content = content
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeError) as error:
            raise InputError(f"{_DAMAGED}: {error}.") from error
        self._parts = {part.filename: part for part in self._archive.infolist()}
        self.names = [*self._parts]
        if len(self._parts) != len(self._archive.infolist()):
            raise InputError(f"{_DAMAGED}: it has two parts of one name.")
        if (size := sum(part.file_size for part in self._parts.values())) > options.max_bytes:
            raise InputError(
                f"has {size:,} bytes unpacked; more than {options.max_bytes:,} are refused "
                "(--max-file-mib)."
            )
        for name, part in self._parts.items():
            if part.flag_bits & 1:
                raise InputError("is encrypted; save it without a password.")
            if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"packs {name} by a method that documents do not have.")
            if _MACROS.fullmatch(name):
                raise InputError(f"has macros ({name}); save it without them.")

    def read(self, name: str) -> bytes:
        """Return a part.

        Raises:
            InputError: There is no such part, or it is damaged.
        """
        if (part := self._parts.get(name)) is None:
            raise InputError(f"{_DAMAGED}: it has no part {name}.")
        try:
            with self._archive.open(part) as file:
                # The size is that of the directory, which is in the bound; a part that has more is
                # not unpacked beyond it, and its checksum differs.
                return file.read(part.file_size + 1)
        except (
            zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError,
            ValueError,
        ) as error:  # fmt: skip
            raise InputError(f"{_DAMAGED}: {name} cannot be unpacked: {error}.") from error

    def xml(self, name: str, *arguments: Any, **options: Any) -> XmlSource:
        """Parse a part with arguments of `XmlSource`.

        Raises:
            InputError: There is no such part, or it is damaged.
        """
        content = self.read(name)
        try:
            return XmlSource(content, *arguments, **options)
        except InputError as error:
            raise InputError(f"{_DAMAGED}: {name} {error}") from error

    def write(self, changed: Mapping[str, bytes]) -> bytes:
        """Return the package with changed parts, in the same order and by the same methods."""
        if not changed:
            return self._content
        output = io.BytesIO()
        with zipfile.ZipFile(output, "w") as archive:
            archive.comment = self._archive.comment
            for name, part in self._parts.items():
                written = copy.copy(part)
                written.extra = b""  # may have sizes of the original
                archive.writestr(written, changed[name] if name in changed else self.read(name))
        return output.getvalue()


class Block(NamedTuple):
    """Text that is rendered together.

    Attributes:
        fragments: Its segments.
        place: Place of the segments.
        edit: Edits the source of the part for one translation per segment.
    """

    fragments: Sequence[Fragment]
    place: str
    edit: Callable[[XmlSource, Sequence[str]], None]


def package_text(
    package: Package, parts: Iterable[tuple[str, XmlSource, Sequence[Block]]]
) -> FileText:
    """Return the text of a package by the blocks of its parts."""
    parts = [(name, source, blocks) for name, source, blocks in parts if blocks or source.is_edited]
    segments = [
        Segment(fragment.text, "xml", block.place)
        for _, _, blocks in parts
        for block in blocks
        for fragment in block.fragments
    ]

    def render(translations: Sequence[str]) -> bytes:
        following = iter(translations)
        changed = {}
        for name, source, blocks in parts:
            for block in blocks:
                found = [next(following) for _ in block.fragments]
                if found != [fragment.text for fragment in block.fragments]:
                    block.edit(source, found)
            if source.is_edited:
                changed[name] = source.render()
        return package.write(changed)

    return FileText(segments, render)
