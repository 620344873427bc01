"""Texts with markup, translated by a real bundle."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from translate_trt.runtime import (
    Glossary,
    SearchOptions,
    Translator,
)
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.text.glossary import Entry

PAGE = """<!DOCTYPE html>
<h1 title="a cat">The <i>cat</i></h1>
<ul>
  <li>A <b>big <a href="?x=1&amp;y">dog</a></b> runs <!-- soon --> under the tree, {name}.</li>
  <li>The <code>tree</code> walks<img src="tree.png"> &amp; sleeps</li>
</ul>
<pre>the  cat</pre>
"""


def tags(text: str) -> Counter[str]:
    return Counter(re.findall(r"<!--.*?-->|<[^>]*>|\{name\}", text))


def test_a_page_keeps_its_tags(translator: Translator) -> None:
    options = SearchOptions(num_hypotheses=3)
    found = translator.translate_document(PAGE, options, split_sentences=False, markup="html")
    assert len(found.hypotheses) == 3
    for hypothesis in found.hypotheses:
        assert tags(hypothesis.text) == tags(PAGE)
        assert "<code>tree</code>" in hypothesis.text
        assert hypothesis.text.endswith("</ul>\n<pre>the  cat</pre>\n")
        assert hypothesis.alignment is None
    assert found.segment_count == 3
    # Tags alone are added to what the bundle says of the texts.
    (heading,) = translator.translate(["The cat"])
    assert re.sub("<[^>]*>", "", found.text).lstrip().startswith(heading.text.strip())


def test_lines_and_streams(translator: Translator) -> None:
    lines = ["The <b>cat</b> runs.", "", "<br>"]
    found = translator.translate(lines, markup="html")
    assert [tags(one.text) for one in found] == [tags(line) for line in lines]
    assert [one.text for one in found[1:]] == lines[1:]
    streamed = translator.translate_iter(lines, markup="html")
    assert [one.text for one in streamed] == [one.text for one in found]
    assert translator.translate(lines[0], markup="html").text == found[0].text


def test_sentences_of_a_block(translator: Translator) -> None:
    pytest.importorskip("sentencex")
    pytest.importorskip("langcodes")
    page = "<p>The <b>cat</b> runs. A <i>dog</i> sleeps.</p>"
    found = translator.translate_document(page, markup="xml")
    assert tags(found.text) == tags(page)
    assert found.segment_count == 2


def test_errors(translator: Translator) -> None:
    with pytest.raises(InputError, match=r"line 2.*XML"):
        translator.translate(["a", "<b>"], markup="xml")
    with pytest.raises(InputError, match=r"text 1.*XML"):
        translator.translate_document(["<b>"], markup="xml", split_sentences=False)
    # A text is named, and not the blocks that it is cut into.
    with pytest.raises(OptionError, match="beam_size is 1"):
        translator.translate(
            ["<p>a</p><p>a</p>", "<p>a</p><p>cat</p>"], SearchOptions(beam_size=1), markup="html",
            terminology=Glossary([Entry("cat", ("Hund",))]), names=["page 1", "page 2"],
        )  # fmt: skip
    with pytest.raises(InputError, match="1 names"):
        translator.translate(["a", "b"], names=["c"])
    with pytest.raises(OptionError, match="markup is 'sgml'"):
        translator.translate("a", markup="sgml")
    for more in ({"alignments": True}, {"target_prefixes": ["b"]}):
        with pytest.raises(OptionError, match="markup"):
            translator.translate(["a"], markup="html", **more)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="unwrap"):
        translator.translate_document("a", unwrap=True, markup="html")
