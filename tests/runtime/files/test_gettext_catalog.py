"""Catalogues of GNU gettext."""

import io
import random

import pytest
from babel.messages.pofile import read_po
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

HEADER = """# Title.
#, fuzzy
msgid ""
msgstr ""
"Language: \\n"
"Content-Type: text/plain; charset=CHARSET\\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"
"""
ENTRIES = """
#: a.c:3
#, c-format
msgid "One \\"file\\"\\n"
msgid_plural "%d files\\n"
msgstr[0] ""
msgstr[1] ""

#| msgid "Old"
msgctxt "menu"
msgid "New"
msgstr ""

#, fuzzy
#~ msgid "Obsolete"
#~ msgstr "x"

msgid "Kept"
msgstr "Behalten"

#, fuzzy
msgid "Guess"
msgstr "Rate"
"""


def test_template_becomes_a_catalogue() -> None:
    found = rendered((HEADER + ENTRIES).encode(), "a.pot", capitals, target_language="pol_Latn")
    text = found.decode()
    assert text.startswith('# Title.\nmsgid ""\nmsgstr ""\n"Language: pl\\n"\n')
    assert "charset=UTF-8" in text
    assert "nplurals=3; plural=n==1 ?" in text
    assert '#, fuzzy, c-format\nmsgid "One' in text
    assert '#, fuzzy\n#| msgid "Old"\nmsgctxt "menu"\nmsgid "New"\nmsgstr "NEW"\n' in text
    assert text.endswith(ENTRIES[ENTRIES.index("\n#, fuzzy\n#~") :])
    catalog = read_po(io.BytesIO(found))
    files = catalog.get('One "file"\n')
    assert files is not None
    assert files.string == ('ONE "FILE"\n', "%D FILES\n", "%D FILES\n")
    assert files.fuzzy


@pytest.mark.parametrize(
    ("language", "count"), [("ja", 1), ("de", 2), ("pt_BR", 2), ("rus_Cyrl", 3), ("ar", 6)]
)
def test_plural_forms_of_languages(language: str, count: int) -> None:
    found = rendered((HEADER + ENTRIES).encode(), "a.pot", target_language=language)
    assert f"nplurals={count};" in found.decode()
    assert (b"msgstr[1]" in found) is (count > 1 or b"msgstr[1]" in ENTRIES.encode())
    assert found.count(b"msgstr[") == max(count, 2)


@pytest.mark.parametrize(
    ("language", "first"), [("de", "One file"), ("ru", "%d files"), ("fr", "%d files")]
)
def test_form_of_several_numbers_names_the_number(language: str, first: str) -> None:
    entry = 'msgid "One file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    assert texts(entry.encode(), "a.po", target_language=language)[0] == first
    named = entry.replace("One", "%d").encode()
    assert texts(named, "a.po", target_language=language)[0] == "%d file"


def test_missing_fields_of_the_header_are_added() -> None:
    content = b'msgid ""\nmsgstr "Content-Type: text/plain\\n"\n\nmsgid "a"\nmsgstr ""\n'
    found = rendered(content, "a.po", target_language="ja").decode()
    assert 'plain\\n"\n"Language: ja\\n"\n"Plural-Forms: nplurals=1; plural=0;\\n"\n' in found


def test_translations_are_kept_unless_overwritten() -> None:
    content = (HEADER + ENTRIES).encode()
    assert texts(content, "a.po") == ['One "file"\n', "%d files\n", "New"]
    found = rendered(content, "a.po", capitals, overwrite=True).decode()
    assert '#, fuzzy\nmsgid "Kept"\nmsgstr "KEPT"' in found
    assert '#, fuzzy\nmsgid "Guess"\nmsgstr "GUESS"' in found


def test_charset_that_lacks_a_character_becomes_utf_8() -> None:
    content = (
        'msgid ""\nmsgstr "Content-Type: charset=ISO-8859-1\\n"\n\n# é\nmsgid "a"\nmsgstr ""\n'
    )
    latin = content.encode("latin-1")
    assert "charset=ISO-8859-1" in rendered(latin, "a.po", lambda _: "ü").decode("latin-1")
    found = rendered(latin, "a.po", lambda _: "ł").decode()
    assert "charset=UTF-8" in found
    assert '# é\n#, fuzzy\nmsgid "a"\nmsgstr "ł"\n' in found


def test_escaped_bytes_are_of_the_charset() -> None:
    entry = 'msgid ""\nmsgstr "Content-Type: charset={}\\n"\n\nmsgid "{}\\t"\nmsgstr ""\n'
    for charset, escapes in ("UTF-8", "\\303\\xa9"), ("ISO-8859-1", "\\351"):
        assert texts(entry.format(charset, f"a{escapes}").encode(), "a.po") == ["aé\t"]


def test_long_translations_are_wrapped_as_the_source() -> None:
    one = "msgid " + '"{}"\nmsgstr ""\n'.format("word " * 40)
    assert len(rendered(one.encode(), "a.po").decode().splitlines()) == 3
    wrapped = one.replace('"word', '""\n"word', 1)
    found = rendered(wrapped.encode(), "a.po").decode().splitlines()
    assert [len(line) for line in found[3:]] == [9, 77, 77, 52]


def random_catalogue(source: random.Random) -> tuple[str, dict[str, str]]:
    """Return a catalogue, and its texts with their translations."""
    entries: dict[str, str] = {}
    pieces = ['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n']
    for number in range(source.randrange(5)):
        words = source.choices(["one", "zwei", '"', "\\", "\n", "\t", "漢字", "5", "é"], k=30)
        text = f"{number} a" + " ".join(words[: source.choice((1, 5, 30))])
        written = "".join(
            {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}.get(one, one) for one in text
        )
        if source.random() < 0.5:
            written = '"\n"'.join(("", *written.split(" ")))
            text = text.replace(" ", "")
        entries[text] = source.choice(("", "x"))
        comment = source.choice(("", "# comment\n", "#, c-format\n", '#| msgid "old"\n'))
        pieces.append(f'{comment}msgid "{written}"\nmsgstr "{entries[text]}"\n')
    return "\n".join(pieces), entries


def test_random_catalogues() -> None:
    source = random.Random(0)
    for _ in range(500):
        text, entries = random_catalogue(source)
        line_end = source.choice(("\n", "\r\n"))
        content = text.replace("\n", line_end).encode()
        complete = content.replace(b'msgstr ""', b'msgstr "y"')
        assert rendered(complete, "a.po") == complete
        found = rendered(content, "a.po", capitals)
        catalog = read_po(io.BytesIO(found))
        for one, translation in entries.items():
            message = catalog.get(one)
            assert message is not None
            assert message.string == (translation or one.upper())
            assert message.fuzzy is not bool(translation)
        assert found.count(b"\n") == found.count(line_end.encode())


def test_damaged_files_are_refused() -> None:
    assert read_damaged((HEADER + ENTRIES).encode(), "a.po") > 20
    with pytest.raises(InputError, match="line 2"):
        texts(b'msgid "a"\nmsgstr\n', "a.po")
    with pytest.raises(InputError, match="charset"):
        texts(b'msgid ""\nmsgstr "charset=nonsense\\n"\n', "a.po")
