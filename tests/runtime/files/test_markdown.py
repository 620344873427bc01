"""Markdown: blocks at their places, inline markup as it is written."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.file_texts import capitals, rendered, texts

pytest.importorskip("markdown_it")

from markdown_it import MarkdownIt

DOCUMENT = """---
title: kept
---
# A *b* c #

> one two three four five six seven
> two `c  d` \\* &amp; [x *y*](u "t") ![i](j) [r] <http://a.b> <b>bo</b> <br> snake_case 2 * 3
>
> - a\x20\x20
>   b

|a|b\\|c|
|:-|-:|
|x `a\\|b`|*y*|

Heading
=======

    code

1. 1. deep [^1] $x^2$ text

[r]: http://x
"""
TRANSLATED = """---
title: kept
---
# A *B* C #

> ONE TWO THREE FOUR FIVE SIX SEVEN TWO `c  d` * & [X *Y*](u "t") ![i](j) [R][r] <http://a.b>
> <b>BO</b> <br> SNAKE_CASE 2 * 3
>
> - A\x20\x20
>   B

|A|B\\|C|
|:-|-:|
|X `a\\|b`|*Y*|

HEADING
=======

    code

1. 1. DEEP [^1] $x^2$ TEXT

[r]: http://x
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_document(line_end: str) -> None:
    content = DOCUMENT.replace("\n", line_end).encode()
    assert rendered(content, "a.md") == content
    # Lines that Markdown may not begin with stay at the end of the line before.
    expected = TRANSLATED.replace(">\n> <b>", ">\x20<b>").replace("\n", line_end)
    assert rendered(content, "a.md", capitals).decode() == expected


def test_text_that_would_be_markup_is_escaped() -> None:
    text = "1986. It * was *the* `year` | <b> [a]"
    escaped = "1986\\. It \\* was \\*the\\* \\`year\\` | \\<b\\> \\[a\\]"
    found = rendered(b"One *two*.\n\n- three\n\n|a|\n|-|\n|b|\n", "a.md", lambda _: text).decode()
    assert found.startswith(f"{escaped}\n\n- {escaped}\n\n|1986")
    assert texts(found.encode(), "a.md")[0] == text


def test_html_blocks_are_documents_of_html() -> None:
    assert texts(b"<div>\nx\n</div>\n\n<hr>\n", "a.md") == ["<div>\nx\n</div>\n"]


INLINE = (
    "word", " ", " ", "*em*", "**strong**", "`code`", "[link](url)", "[link *em*][ref]", "![i](u)",
    "<http://u>", "<b>x</b>", "<br>", "\\*", "&amp;", "snake_case", " 2 * 3 ", "~~del~~", "  \n",
    "\\\n", "\n", "{name}", "[ref]", "_", "`", "[",
)  # fmt: skip
BLOCKS = (
    "{}\n\n", "# {}\n\n", "> {}\n\n", "- {}\n", "1. {}\n\n", "```\n{}\n```\n\n", "    {}\n\n",
    "|a|b|\n|-|-|\n|{}|c|\n\n", "{}\n===\n\n", "<div>{}</div>\n\n", "***\n\n", "* > {}\n\n",
)  # fmt: skip


def _shape(document: str) -> list[Any]:
    """Return the blocks, the markup and the code of a document, and its text in capitals."""
    shape: list[Any] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(document):
        shape.append((token.type, token.level, token.content * (token.type != "inline")))
        text = ""
        for child in token.children or ():
            if child.type in ("text", "softbreak", "text_special"):
                text += child.content.upper() or " "
            else:
                shape.append((child.type, child.content.upper() * (child.type != "code_inline")))
        shape.append("".join(text.split()))
    return shape


def test_random_documents() -> None:
    rng = random.Random(7)
    for _ in range(500):
        texts = ["".join(rng.choices(INLINE, k=rng.randint(1, 9))).strip() for _ in range(3)]
        document = (
            "".join(rng.choice(BLOCKS).replace("{}", text) for text in texts) + "[ref]: there\n"
        )
        assert rendered(document.encode(), "a.md") == document.encode()

        def translate(segment: Any) -> str:
            return segment.text if segment.kind == "html" else capitals(segment)

        found = rendered(document.encode(), "a.md", translate).decode()
        assert _shape(found) == _shape(document), document
