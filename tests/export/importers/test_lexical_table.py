"""Lexical shortlists of Marian, in text and in binary form."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from support.marian_files import SOURCE, TARGET, shortlist_of, table_of

from translate_trt.export.importers.marian.lexical_table import ShortlistFile, import_shortlist
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import END, PAD, START, UNKNOWN
from translate_trt.train.shortlist.table import Shortlist

FREQUENT, BEST = 5, 3


def token_map(tokens: list[str]) -> TokenMap:
    return TokenMap(tokens, SpecialTokens(None, 1, None, 0))


MAPS = token_map(SOURCE), token_map(TARGET)


def random_lists(seed: int, sizes: tuple[int, int] = (len(SOURCE), len(TARGET))) -> list[list[int]]:
    """Return the translations of each source token, of which some have none."""
    rng = random.Random(seed)
    return [
        rng.sample(range(1, sizes[1]), rng.randint(0, BEST)) if index else []
        for index in range(sizes[0])
    ]


def candidates(
    shortlist: Shortlist, sentence: list[int], maps: tuple[TokenMap, TokenMap]
) -> set[int]:
    """Return the list of a sentence in Marian's ids."""
    ours = [maps[0].rows.index(token) for token in sentence]
    found = shortlist.for_sentence([*ours, END]).tolist()
    return {maps[1].rows[token] for token in found}  # type: ignore[misc]


def expected(lists: list[list[int]], sentence: list[int], shared: bool = False) -> set[int]:
    """Return Marian's list, without its padding to a multiple of eight tokens."""
    found = set(range(FREQUENT)).union(*(lists[token] for token in sentence))
    return found | (set(sentence) if shared else set())


def check(shortlist: Shortlist, lists: list[list[int]], maps: tuple[TokenMap, TokenMap]) -> None:
    shared, rng = maps[0] is maps[1], random.Random(9)
    for _ in range(50):
        sentence = [rng.randrange(1, maps[0].count) for _ in range(rng.randint(1, 9))]
        assert candidates(shortlist, sentence, maps) == expected(lists, sentence, shared)


@pytest.mark.parametrize("one_vocabulary", [False, True])
def test_binary(one_vocabulary: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lex.bin"
    maps = (MAPS[0], MAPS[0]) if one_vocabulary else MAPS
    lists = random_lists(1, (maps[0].count, maps[1].count))
    path.write_bytes(shortlist_of(lists, FREQUENT, BEST))
    shortlist = import_shortlist(ShortlistFile(path), maps, "0" * 64)
    assert not caplog.messages
    check(shortlist, lists, maps)
    saved = tmp_path / "shortlist.safetensors"
    shortlist.save(saved)
    check(Shortlist.load(saved, "0" * 64), lists, maps)


def test_text(tmp_path: Path) -> None:
    """Marian keeps the best translations, of equal ones those of higher ids."""
    path, rng = tmp_path / "lex.s2t", random.Random(3)
    lists: list[list[int]] = []
    lines = ["NULL s1 0.9", "t1 NULL 0.8", ""]
    for source in range(len(SOURCE)):
        targets = rng.sample(range(1, len(TARGET)), rng.randint(0, 6))
        ranked = sorted(
            ((rng.choice([0.5, 0.25, 0.0]), target) for target in targets), reverse=True
        )
        lists.append([target for value, target in ranked[:BEST] if value > 0])
        lines += [f"{TARGET[target]} {SOURCE[source]} {value}" for value, target in ranked]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    shortlist = import_shortlist(ShortlistFile(path, FREQUENT, BEST), MAPS, "")
    lists[0] = []  # the translations of the end symbol are in every list
    sentence = [5, 6, 7]
    always = candidates(shortlist, [], MAPS)
    assert candidates(shortlist, sentence, MAPS) == always.union(*(lists[t] for t in sentence))
    assert always >= set(range(FREQUENT))
    row = shortlist.probabilities[[MAPS[0].rows.index(7)]]
    assert (np.diff(row) <= 0).all()


def test_unknown_words_are_the_unknown_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lex.s2t"
    path.write_text("t9 strange 0.5\nstrange s3 0.5\nt8 s3 0.25\n")
    shortlist = import_shortlist(ShortlistFile(path, 1), MAPS, "")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "(66.7%)" in caplog.text
    assert candidates(shortlist, [1], MAPS) == {0, TARGET.index("t9")}
    assert candidates(shortlist, [SOURCE.index("s3")], MAPS) == {0, 1, TARGET.index("t8")}


@pytest.mark.parametrize(
    "content", [shortlist_of(random_lists(1), FREQUENT, BEST), b"t9 s3 1"], ids=["binary", "text"]
)
def test_compressed(content: bytes, tmp_path: Path) -> None:
    path, packed = tmp_path / "lex", tmp_path / "lex.gz"
    path.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    tables = [import_shortlist(ShortlistFile(one), MAPS, "") for one in (path, packed)]
    assert (tables[0].translations == tables[1].translations).all()
    assert (tables[0].frequent == tables[1].frequent).all()


def test_table(tmp_path: Path) -> None:
    """Frequent tokens are ascending with the end, and no translation repeats them."""
    path = tmp_path / "lex.bin"
    path.write_bytes(shortlist_of(random_lists(2), FREQUENT, BEST))
    shortlist = import_shortlist(ShortlistFile(path), MAPS, "")
    assert shortlist.frequent.tolist() == sorted({END, UNKNOWN, 4, 5, 6})
    assert not np.isin(shortlist.translations, [*shortlist.frequent, START]).any()
    assert (shortlist.translations[[PAD, START, END]] == PAD).all()
    assert (shortlist.vocabulary_size, len(shortlist.copies)) == (MAPS[1].size, MAPS[0].size)


def test_wrong_checksum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lex.bin"
    content = bytearray(shortlist_of(random_lists(1), FREQUENT, BEST))
    content[8] ^= 1
    path.write_bytes(content)
    import_shortlist(ShortlistFile(path), MAPS, "")
    assert "checksum" in caplog.text


HUGE = [0, 2000, *[2000] * (len(SOURCE) - 1)]
REFUSED: dict[str, bytes] = {
    "is damaged: it has 8 bytes": table_of(5, 3, [0], [])[:8],
    "4,611,686,018,427,387,904 offsets and 1 translations need": struct.pack(
        "<6Q", 0xF11A48D5013417F5, 0, 5, 3, 1 << 62, 1
    ),
    "its offsets do not ascend from 0 to 2": table_of(5, 3, [0, 2, 1, 2], [4, 5]),
    "its offsets do not ascend from 0 to 0": table_of(5, 3, [], []),
    "a token has 2 translations, more than 1": table_of(5, 1, [0, 2], [4, 5]),
    "lists of 80 source tokens, but the source vocabulary has 50": table_of(5, 1, [0] * 81, []),
    "has the target token 99, but the target vocabulary has 32": table_of(5, 1, [0, 1], [99]),
    "has 2,000 translations of a token; at most 1,024": table_of(5, 5000, HUGE, [4] * 2000),
    "has 4,611,686,018,427,387,904 frequent tokens": table_of(1 << 62, 1, [0, 1], [4]),
    "has no frequent tokens": table_of(0, 1, [0, 1], [4]),
    r"lex\.bin is empty": b"\n\n",
    "line 2: 't2 s3' is not a target token, a source": b"t2 s3 0.5\nt2 s3\n",
    "line 1: 't2 s3 -1' is not": b"t2 s3 -1\n",
    r"lex\.bin is damaged or incomplete": gzip.compress(b"t2 s3 0.5\n")[:-1],
    "none of its 2 translations .* belongs to another model": b"a b 0.5\nt2 b 0.5\n",
    "source and target would fit 100.0%": b"s2 t3 0.5\ns4 t3 0.5\n",
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_files_that_are_refused(message: str, tmp_path: Path) -> None:
    path = tmp_path / "lex.bin"
    path.write_bytes(REFUSED[message])
    with pytest.raises(InputError, match=message):
        import_shortlist(ShortlistFile(path), MAPS, "")


def test_damaged_bytes(tmp_path: Path) -> None:
    """Files with random changes are read or refused, in no case with another error."""
    path, rng, refused = tmp_path / "lex.bin", random.Random(5), 0
    content = shortlist_of(random_lists(1), FREQUENT, BEST)
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            place = rng.choice([rng.randrange(8, 60), rng.randrange(8, len(changed))])
            changed[place : place + 1] = rng.choice([bytes([rng.randrange(256)]), b""])
        path.write_bytes(changed)
        try:
            shortlist = import_shortlist(ShortlistFile(path), MAPS, "")
        except InputError:
            refused += 1
        else:
            assert shortlist.translations.max() < MAPS[1].size
    assert refused > 100
