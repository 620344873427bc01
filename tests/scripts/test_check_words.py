"""scripts/check_words.py: house terms that must not come back."""

from __future__ import annotations

from types import ModuleType

import pytest
from support.scripts import load_script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def check_words() -> ModuleType:
    return load_script("check_words")


def found(check_words: ModuleType, path: str, text: str) -> list[str]:
    configuration = check_words.read_configuration()
    return [find.text for find in check_words.finds_in(path, text, configuration)]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("the yardstick of the stand-in", ["yardstick", "stand-in"]),
        ("_yardstick(lane_count)", ["yardstick", "lane"]),
        ("It mends what is dear.", ["mends", "dear"]),
        ("Nobody and anybody", ["Nobody", "anybody"]),
        ("the product before it", ["product"]),
        ("a dot product, the product of both, production, itertools.product8", []),
        ("written in place, in-place, replaced", []),
        ("amended, deary_me, planes", []),
    ],
)
def test_terms_are_found_where_they_are_no_parts_of_words(
    check_words: ModuleType, text: str, terms: list[str]
) -> None:
    assert found(check_words, "docs/page.md", text) == terms
