from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cpp_library import Library
from support.markup import MarkupCheck


@pytest.fixture(scope="module")
def markup_check(library: Library) -> Iterator[MarkupCheck]:
    """Running program, which must end without an error."""
    with library.probe("translate_trt_markup_check") as program:
        yield MarkupCheck(program)
