"""YAML."""

import random
from typing import Any

import pytest
import yaml
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts, upper

from translate_trt.runtime.errors import InputError

LOCALE = """\
# Locale é
en:  # the language
  title: A title  # comment
  quoted: 'It''s'
  double: "a\\tb \\u00e9"
  number: 12
  yes: no
  date: 2001-01-01
  tagged: !ruby/sym name
  anchor: &a "shared"
  alias: *a
  flow: {one: a b, two: [c, "d"]}
  multi: several
    lines
  literal: |2-

      indented
    more
  folded: >+
    one two three four five six seven eight
    nine ten

    second

  after: [x]
"""


def _load(text: str | bytes) -> Any:
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def load(content: bytes) -> Any:
    return _load(content.decode().replace("!ruby/sym", "!!int"))


def test_strings_keep_their_styles() -> None:
    content = LOCALE.replace("!ruby/sym name", "!ruby/sym 3").encode()
    assert rendered(content, "a.yml") == content
    found = rendered(content, "a.yml", capitals)
    assert load(found) == upper(load(content))
    windows = content.replace(b"\n", b"\r\n")
    assert rendered(windows, "a.yml", capitals) == found.replace(b"\n", b"\r\n")
    text = found.decode()
    for line in (
        "en:  # the language", "  title: A TITLE  # comment", "  quoted: 'IT''S'",
        '  double: "A\\tB \\xc9"', "  yes: no", '  anchor: &a "SHARED"', "  alias: *a",
        '  flow: {one: A B, two: [C, "D"]}', "  multi: SEVERAL LINES", "  literal: |2-",
        "      INDENTED", "  folded: >+", "    NINE TEN", "    SECOND",
    ):  # fmt: skip
        assert f"\n{line}\n" in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("fine", "k: fine"),
        ("no", 'k: "no"'),
        ("12", 'k: "12"'),
        ("a: b", 'k: "a: b"'),
        ("- a", 'k: "- a"'),
        ("a #b", 'k: "a #b"'),
        ("'a", 'k: "\'a"'),
        ("two\nlines", 'k: "two\\nlines"'),
        ("*a", 'k: "*a"'),
    ],
)
def test_plain_strings_that_would_be_others_are_quoted(text: str, written: str) -> None:
    assert rendered(b"k: old", "a.yaml", lambda _: text).decode() == written


def test_key_of_the_language() -> None:
    languages = {"source_language": "eng_Latn", "target_language": "nor"}
    found = rendered(b"en:\n  a: text\n", "a.yml", **languages)
    assert found == b'"no":\n  a: text\n'
    assert rendered(b"fr:\n  a: text\n", "a.yml", **languages) == b"fr:\n  a: text\n"
    assert rendered(b"en: x\nb: y\n", "a.yml", **languages) == b"en: x\nb: y\n"


def test_keys_select_values() -> None:
    content = b"a: {title: x, b: [{title: y}, {name: z}]}\n? [complex]\n: w\n--- top\n"
    assert texts(content, "a.yml") == ["x", "y", "z", "w", "top"]
    assert texts(content, "a.yml", keys=("*.title",)) == ["x", "y"]


def random_scalar(source: random.Random, indent: int) -> str:
    """Return a scalar of a random style."""
    words = source.choices(["one", "two", "é", "漢", "it's", '"x"', "a:b", "#", "x y"], k=6)
    text = " ".join(words[: source.randrange(1, 7)])
    style = source.randrange(6)
    if style == 0:
        return "p " + text.replace(" #", "")
    if style == 1:
        return "'" + text.replace("'", "''") + "'"
    if style == 2:
        return '"' + text.replace('"', '\\"') + source.choice(("", "\\n", "\\u00e9")) + '"'
    if style == 3:
        return source.choice(("12", "true", "~", "1.5", "2001-01-01"))
    lines = [text, *source.choices(["", "  more", "next", "x" * 20], k=source.randrange(4)), "end"]
    header = "|>"[style - 4] + source.choice(("", "-", "+"))
    margin = "\n" + " " * (indent + 2)
    body = margin.join(lines).replace(margin + "\n", "\n\n")
    return header + margin + body + "\n" * source.randrange(3)


def random_document(source: random.Random, indent: int = 0) -> str:
    lines = []
    for number in range(source.randrange(1, 4)):
        margin, key = " " * indent, f"k{number}"
        if indent < 6 and source.random() < 0.3:
            lines.append(f"{margin}{key}:  # comment\n{random_document(source, indent + 2)}")
        elif source.random() < 0.2:
            lines.append(f"{margin}{key}:\n{margin}- {random_scalar(source, indent)}")
        else:
            lines.append(f"{margin}{key}: {random_scalar(source, indent)}")
    return "\n".join(lines)


def test_random_documents() -> None:
    source = random.Random(0)
    for _ in range(500):
        text = random_document(source) + source.choice(("", "\n"))
        if source.random() < 0.2:
            text = text.replace("\n", "\r\n")
        content = text.encode()
        assert rendered(content, "a.yaml") == content
        assert _load(rendered(content, "a.yaml", capitals)) == upper(_load(text))


def test_damaged_files_are_refused() -> None:
    assert read_damaged(LOCALE.encode(), "a.yaml") > 10
    with pytest.raises(InputError, match="line 2"):
        texts(b"a: b\n c: d\n", "a.yaml")
    for depth in (600, 100000):
        with pytest.raises(InputError, match=r"YAML|deep"):
            texts(b"[" * depth, "a.yaml")
