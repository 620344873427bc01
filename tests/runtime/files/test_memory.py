"""Translation memories: equal and similar texts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.files.memory import TranslationMemory
from translate_trt.runtime.files.translation import Origin

PAIRS = [
    ("Page 1 of 10 for {user}", "Seite 1 von 10 f\u00fcr {user}"), ("The cat runs.", "Die Katze."),
    ("At 1,5", "Um 1.5"), ("The cat runs.", "Die Katze l\u00e4uft."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "translation"),
    [("The cat runs.", "Die Katze l\u00e4uft."),
     ("Page 3 of 4 for %s", "Seite 3 von 4 f\u00fcr %s"),
     ("Page 10 of 1 for {user}", "Seite 10 von 1 f\u00fcr {user}"),
     ("At 2,5", None),  # the translation writes the number in another way
     ("Page 3 of 4", None), ("The dog runs.", None)],
)  # fmt: skip
def test_equal_texts(text: str, translation: str | None) -> None:
    found = TranslationMemory(PAIRS).find(text, "text")
    assert (found and found.text) == translation
    assert found is None or found.origin == Origin("exact")


def test_similar_texts() -> None:
    pytest.importorskip("rapidfuzz")
    memory = TranslationMemory(PAIRS, similarity=0.7)
    found = memory.find("The cats run.", "text")
    assert found is not None
    assert found.text == "Die Katze l\u00e4uft."
    assert found.origin.name == "fuzzy"
    assert 0.7 <= found.origin.similarity < 1
    assert memory.find("Another text", "text") is None
    assert memory.find("The cats run.", "xml") is None


TMX = """<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="EN-US"><seg>The <bpt i="1">&lt;b&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept></seg>
</tuv><tuv xml:lang="de"><seg>Die Katze</seg></tuv><tuv xml:lang="fr"><seg>Le chat</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>only</seg></tuv></tu></body></tmx>"""


def test_files(tmp_path: Path) -> None:
    tmx, database = tmp_path / "a.tmx", tmp_path / "a b?.sqlite"
    tmx.write_text(TMX)
    with sqlite3.connect(database) as connection:
        connection.executescript(
            "CREATE TABLE sources (sid INTEGER PRIMARY KEY, text, lang);"
            "CREATE TABLE targets (tid INTEGER PRIMARY KEY, sid, text, lang);"
            "INSERT INTO sources VALUES (1, 'The cat', 'en_GB'), (2, 'The cat', 'english');"
            "INSERT INTO targets VALUES (1, 1, 'Die Katze', 'de'), (2, 1, 'Le chat', 'fr'),"
            " (3, 2, 'x', 'de');"
        )
    connection.close()
    named = tmp_path / "named.tmx"
    named.write_text(TMX.replace("<tmx", '<tmx xmlns="http://www.lisa.org/tmx14"'))
    for path in (tmx, named, database):
        memory = TranslationMemory.read(path, "en", "de")
        assert len(memory) == 1
        found = memory.find("The cat", "text")
        assert found is not None
        assert found.text == "Die Katze"
        with pytest.raises(InputError):
            TranslationMemory.read(path, "en", "it")


def test_errors(tmp_path: Path) -> None:
    damaged = tmp_path / "a.tmx"
    damaged.write_text(TMX[:-9])
    for path in (damaged, tmp_path / "none.tmx"):
        with pytest.raises(InputError):
            TranslationMemory.read(path, "en", "de")
    with pytest.raises(OptionError):
        TranslationMemory.read(damaged, None, "de")
    with pytest.raises(OptionError):
        TranslationMemory([], similarity=0)
