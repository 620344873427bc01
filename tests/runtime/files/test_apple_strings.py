"""Strings of Apple's platforms."""

import plistlib
import random
import re
from typing import Any

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

FILE = """\
/* A comment = "x"; */
"title" = "The \\"title\\"\\n%1$@";
// another
bare.key="two
lines"  ; /* after */
"é" = "caf\\U00e9";
"""


def load(text: str) -> dict[str, str]:
    """Read strings independently."""
    pairs = re.findall(r'"((?:[^"\\]|\\.)*)"\s*=\s*"((?:[^"\\]|\\.)*)"\s*;', text, re.DOTALL)
    return {key: re.sub(r"\\(.)", lambda one: {"n": "\n", "t": "\t"}.get(one[1], one[1]), value)
            for key, value in pairs}  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_strings(encoding: str) -> None:
    content = FILE.encode(encoding)
    assert rendered(content, "a.strings") == content
    found = rendered(content, "a.strings", lambda one: one.text.upper()).decode(encoding)
    assert found == FILE.replace("The", "THE").replace('\\"title', '\\"TITLE').replace(
        "two\nlines", "TWO\nLINES").replace("caf\\U00e9", "CAFÉ")  # fmt: skip
    assert texts(content, "a.strings", keys=("bare.*",)) == ["two\nlines"]


def test_random_files() -> None:
    source = random.Random(0)
    for _ in range(500):
        lines = []
        for number in range(source.randrange(5)):
            pieces = ["one", "\\n", '\\"', "\\\\", "é", " ", "=", ";", "/*", "%@", "\n"]
            value = "".join(source.choices(pieces, k=source.randrange(1, 9)))
            lines.append(source.choice(("", '/* "a" = "b" */', "// x")))
            lines.append(f'"k{number}"{source.choice(("=", " = "))}"{value}";')
        text = "\n".join(lines)
        content = text.encode(source.choice(("utf-8", "utf-16")))
        assert rendered(content, "a.strings") == content
        found = rendered(content, "a.strings", capitals)
        decoded = found.decode("utf-16" if found[:1] == b"\xff" else "utf-8")
        assert load(decoded) == {key: value.upper() for key, value in load(text).items()}


DICTIONARY: dict[str, Any] = {
    "%d files": {
        "NSStringLocalizedFormatKey": "%#@files@ left & right",
        "files": {
            "NSStringFormatSpecTypeKey": "NSStringPluralRuleType",
            "NSStringFormatValueTypeKey": "d",
            "one": "%d file",
            "other": "%d files",
        },
    }
}


def test_dictionary_of_plurals() -> None:
    content = plistlib.dumps(DICTIONARY)
    assert rendered(content, "a.stringsdict") == content
    assert texts(content, "a.stringsdict") == ["{0} left & right", "%d file", "%d files"]
    found = plistlib.loads(rendered(content, "a.stringsdict", capitals))
    assert found["%d files"]["NSStringLocalizedFormatKey"] == "%#@files@ LEFT & RIGHT"
    assert found["%d files"]["files"] == {
        **DICTIONARY["%d files"]["files"], "one": "%D FILE", "other": "%D FILES",
    }  # fmt: skip
    assert texts(content, "a.strings") == texts(content, "a.stringsdict")


def test_damaged_files_are_refused() -> None:
    assert read_damaged(FILE.encode(), "a.strings") > 10
    assert read_damaged(plistlib.dumps(DICTIONARY), "a.stringsdict") > 10
    with pytest.raises(InputError, match="line 2"):
        texts(b'"a" = "b";\n"c" "d";', "a.strings")
    for content in (plistlib.dumps({"a": "b"}, fmt=plistlib.FMT_BINARY), b"<a/>"):
        with pytest.raises(InputError):
            texts(content, "a.strings")
