"""Shortlists: IBM Model 1 against plain dictionaries, rules of the table, and the file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, PAD
from translate_trt.train.data.batches import TokenArray
from translate_trt.train.shortlist import ibm_model1
from translate_trt.train.shortlist.ibm_model1 import TokenPairs, TranslationTable, learn_table
from translate_trt.train.shortlist.learning import (
    Vocabularies,
    build_shortlist,
    find_tokenizers,
    measure_coverage,
    read_pairs,
)
from translate_trt.train.shortlist.shortlist_size import ShortlistSize
from translate_trt.train.shortlist.table import Shortlist, copies_of, shared_copies, tokenizer_hash
from translate_trt.train.worker_processes import WorkerPool

V = 30
Corpus = Sequence[tuple[Sequence[int], Sequence[int]]]


def pairs_of(corpus: Corpus, kind: str = "int32") -> TokenPairs:
    source, target = (TokenArray.from_lists([pair[side] for pair in corpus]) for side in (0, 1))
    return TokenPairs(
        source.tokens.astype(kind), source.offsets, target.tokens.astype(kind), target.offsets
    )


def learn(
    corpus: Corpus, iterations: int = 5, workers: int = 1, **options: int
) -> TranslationTable:
    with WorkerPool(workers) as pool:
        return learn_table(pairs_of(corpus), V, iterations, pool, **options)


def as_dict(table: TranslationTable) -> dict[tuple[int, int], float]:
    triples = (table.source.tolist(), table.target.tolist(), table.probability.tolist())
    return {(s, t): p for s, t, p in zip(*triples, strict=True)}


def model1_by_hand(
    corpus: Corpus, iterations: int, kept: Collection[tuple[int, int]] | None = None
) -> dict[tuple[int, int], float]:
    """Reference implementation of EM, link by link; END is NULL, and `kept` limits the table."""
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    if kept is not None:
        probability = defaultdict(float, dict.fromkeys(kept, 1.0))
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in corpus:
            for t in target:
                whole = sum(probability[s, t] for s in [*source, END])
                for s in [*source, END] if whole else ():
                    counts[s, t] += probability[s, t] / whole
                    totals[s] += probability[s, t] / whole
        probability = defaultdict(float, {key: n / totals[key[0]] for key, n in counts.items()})
    return {key: p for key, p in probability.items() if p}


def random_corpus(count: int, seed: int = 1, tokens: int = V) -> list[tuple[list[int], list[int]]]:
    random = np.random.default_rng(seed)
    return [
        (random.integers(4, tokens, n).tolist(), random.integers(4, tokens, m).tolist())
        for n, m in random.integers(1, 9, (count, 2))
    ]


# ---- IBM Model 1 ----


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_em_equals_the_reference_implementation(iterations: int) -> None:
    corpus = [*random_corpus(40), ([5, 5, 6], [7, 7]), ([8], [9])]  # repeated tokens
    table = learn(corpus, iterations)
    assert as_dict(table) == pytest.approx(model1_by_hand(corpus, iterations))
    assert (np.diff(table.source * V + table.target) > 0).all()


@pytest.mark.parametrize("places", [1, 60, 1000])
def test_chunks_and_their_order_change_nothing(
    monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    corpus = random_corpus(60)
    whole = as_dict(learn(corpus))
    monkeypatch.setattr(ibm_model1, "_CHUNK_LINKS", places)
    order = np.random.default_rng(3).permutation(len(corpus))
    assert as_dict(learn([corpus[row] for row in order])) == pytest.approx(whole, rel=1e-9)


def test_several_processes_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibm_model1, "_CHUNK_LINKS", 300)
    corpus = random_corpus(40)
    assert as_dict(learn(corpus, 2, workers=2)) == as_dict(learn(corpus, 2))


def test_a_full_table_keeps_the_largest_shares_of_source_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ibm_model1, "_CHUNK_LINKS", 50)
    # 4 is translated by 14 and stands beside many others once; the rare 5 is translated by 15.
    noise = [([4], [14, 20 + index]) for index in range(9)] * 2
    corpus = [*noise, ([5], [15]), ([4], [14])]
    found = as_dict(learn(corpus, most_entries=6))
    assert len(found) == 6
    assert {(5, 15), (4, 14)} <= set(found)
    assert found == pytest.approx(model1_by_hand(corpus, 5, kept=found))


def test_no_iteration_is_an_error() -> None:
    with pytest.raises(OptionError, match="iterations is 0"):
        learn([([4], [5])], iterations=0)


@pytest.mark.parametrize(("count", "rows"), [(2, [0, 3]), (5, [0, 1, 2, 4, 5]), (9, range(7))])
def test_spread_pairs(count: int, rows: Sequence[int]) -> None:
    corpus = random_corpus(7)
    found, wanted = pairs_of(corpus).spread(count), pairs_of([corpus[row] for row in rows])
    for name in ("source", "source_offsets", "target", "target_offsets"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()


# ---- the table ----


def build(corpus: Corpus, frequent: int = 2, best: int = 3, smallest: float = 1e-4) -> Shortlist:
    with WorkerPool(1) as pool:
        size = ShortlistSize(frequent, best, smallest)
        vocabularies = Vocabularies(shared_copies(V), V, "ab" * 32)
        return build_shortlist(pairs_of(corpus, "uint16"), vocabularies, size, 5, pool)


def test_frequent_tokens() -> None:
    made = build([([4], [10, 9, 9]), ([5], [9, 9, 20, 8]), ([5], [20, 8])], frequent=3)
    # 9 comes 4 times; of 8 and 20, twice each, the smaller one; END though 9 comes more often.
    assert made.frequent.tolist() == [END, 8, 9]
    assert made.frequent.dtype == np.int32
    assert made.frequent_counts.tolist() == [3, 2, 4]
    assert (made.pairs, made.iterations, made.vocabulary_size) == (3, 5, V)
    assert build([([4], [9, 9])] * 3, frequent=1).frequent.tolist() == [END]


def test_padding_and_start_are_never_listed_and_unknown_is_if_the_text_has_it() -> None:
    with_unknown = build([([4], [0, 2, 1, 9])], frequent=30)
    assert with_unknown.frequent.tolist() == [1, END, 9]


def test_rows_are_the_most_probable_translations() -> None:
    corpus = random_corpus(80)
    made, table = build(corpus, frequent=4, best=6), model1_by_hand(corpus, 5)
    for source in range(4, V):
        candidates = {
            t: p for (s, t), p in table.items()
            if s == source and t not in made.frequent and (p >= 1e-4 or t == s)
        }  # fmt: skip
        if source not in made.frequent:
            candidates.setdefault(source, 0.0)
        ranked = sorted(candidates, key=lambda t: -candidates[t])
        if source in candidates and source not in ranked[:6]:
            ranked[5] = source
        assert made.translations[source].tolist() == ranked[:6]
        assert made.probabilities[source] == pytest.approx(
            [candidates[t] for t in ranked[:6]], rel=1e-5
        )


def test_every_source_token_may_be_copied() -> None:
    made = build([([4], [14, 15, 16]), ([4], [14, 15, 16])], frequent=1, best=3)
    assert made.translations[4].tolist()[2] == 4  # not the third of three equal tokens
    assert made.translations[25].tolist() == [25, PAD, PAD]  # not in the text
    assert made.probabilities[25].tolist() == [0, 0, 0]


def test_improbable_translations_are_left_out() -> None:
    corpus = random_corpus(80)
    made, all_of_them = build(corpus, best=20, smallest=0.1), build(corpus, best=20)
    assert set(made.probabilities[made.probabilities < 0.1].tolist()) <= {
        0.0, *all_of_them.probabilities[all_of_them.translations == np.arange(V)[:, None]].tolist()
    }  # fmt: skip
    assert 0 < (made.probabilities >= 0.1).sum() == (all_of_them.probabilities >= 0.1).sum()


def test_two_vocabularies() -> None:
    # Source tokens 4 to 7 say 104 to 106 of the target, and 7 is a name that both have.
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    target = [*special, *(f"t{n}" for n in range(4, 107)), "name"]
    copies = copies_of([*special, "a", "b", "c", "name"], target)
    assert copies.tolist() == [0] * 7 + [107]
    corpus = [([4, 5], [104, 105]), ([4, 6], [104, 106]), ([5, 7], [105, 107]), ([6], [106])] * 3
    size = ShortlistSize(1, 2, 0.1)
    with WorkerPool(1) as pool:
        made = build_shortlist(
            pairs_of(corpus, "uint16"), Vocabularies(copies, 108, "x"), size, 8, pool
        )
    assert made.vocabulary_size == 108
    assert made.frequent.tolist() == [END]
    assert [row[0] for row in made.translations[4:].tolist()] == [104, 105, 106, 107]
    assert 107 in made.truncated(1, 1).translations[7]
    assert made.for_sentence([4, 7, END]).tolist()[0] == END
    assert {104, 107} <= set(made.for_sentence([4, 7, END]).tolist())


# ---- lists ----


def test_the_list_of_a_sentence_is_the_sorted_union() -> None:
    made = build(random_corpus(80), frequent=4, best=3)
    rows = made.translations[[7, 9]].ravel().tolist()
    expected = sorted({*made.frequent.tolist(), *rows} - {PAD})
    for ids in ([7, 9], [9, 7, 7, END], np.array([9, 7], np.uint16).tolist()):
        found = made.for_sentence(ids)
        assert found.tolist() == expected
        assert found.dtype == np.int32
    assert made.for_sentence([]).tolist() == made.for_sentence([END]).tolist()
    assert made.for_sentence([END]).tolist() == made.frequent.tolist()


@pytest.mark.parametrize(("frequent", "best"), [(9, 8), (9, 3), (4, 8), (1, 1), (5, 5)])
def test_truncated_equals_a_smaller_build(frequent: int, best: int) -> None:
    corpus = random_corpus(80)
    found = build(corpus, frequent=9, best=8).truncated(frequent, best)
    same(found, build(corpus, frequent=frequent, best=best))


def same(one: Shortlist, other: Shortlist) -> None:
    for name, value in vars(other).items():
        found = getattr(one, name)
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value, err_msg=name)
        else:
            assert found == value


@pytest.mark.parametrize(("frequent", "best"), [(10, 8), (9, 9), (0, 8), (9, 0)])
def test_truncated_does_not_grow(frequent: int, best: int) -> None:
    with pytest.raises(OptionError, match="it must be from 1 to"):
        build(random_corpus(80), frequent=9, best=8).truncated(frequent, best)


@pytest.mark.parametrize(
    ("size", "message"),
    [((0, 1, 0.1), "frequent is 0"), ((1, 0, 0.1), "best is 0"), ((1, 1, 0.0), "min_probability")],
)
def test_sizes_out_of_range(size: tuple[int, int, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ShortlistSize(*size)


def test_no_pairs() -> None:
    with pytest.raises(InputError, match="no sentence pair"):
        build([])


# ---- the file ----


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Shortlist, Path]:
    made = build(random_corpus(80), frequent=4, best=3)
    made.save(tmp_path / "s.safetensors")
    return made, tmp_path / "s.safetensors"


def test_a_saved_shortlist_loads_unchanged(saved: tuple[Shortlist, Path]) -> None:
    same(Shortlist.load(saved[1]), saved[0])
    same(Shortlist.load(saved[1], "ab" * 32), saved[0])
    with safetensors.safe_open(saved[1], "numpy") as file:
        (content,) = file.metadata().values()
    assert json.loads(content) == {
        "format_version": 2, "vocabulary_size": 30, "tokenizer_sha256": "ab" * 32, "pairs": 80,
        "iterations": 5,
    }  # fmt: skip


def test_the_same_table_is_the_same_file(saved: tuple[Shortlist, Path]) -> None:
    content = saved[1].read_bytes()
    for _ in range(5):
        Shortlist.load(saved[1]).save(saved[1])
        assert saved[1].read_bytes() == content


def test_another_tokenizer_is_refused(saved: tuple[Shortlist, Path]) -> None:
    with pytest.raises(InputError, match="another tokenizer"):
        Shortlist.load(saved[1], "cd" * 32)


Change = Callable[[dict[str, np.ndarray], dict[str, object]], object]


def rewrite(path: Path, change: Change) -> None:
    """Rewrite a file with other arrays, or another description."""
    with safetensors.safe_open(path, "numpy") as file:
        ((name, content),) = file.metadata().items()
    arrays, description = safetensors.numpy.load_file(path), json.loads(content)
    change(arrays, description)
    safetensors.numpy.save_file(arrays, path, {name: json.dumps(description)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, words: words.clear(), "format None"),
        (lambda arrays, words: words.update(format_version=1), "format 1.*Make it again"),
        (lambda arrays, words: words.update(format_version=3), "format 3.*upgrade"),
        (lambda arrays, words: words.update(vocabulary_size=5), "outside the vocabulary"),
        (lambda arrays, words: words.update(pairs="many"), "damaged"),
        (lambda arrays, words: words.update(pairs=None), "damaged"),
        (lambda arrays, words: words.pop("tokenizer_sha256"), "damaged"),
        (lambda arrays, words: arrays.pop("translations"), "damaged .'translations'"),
        (lambda a, w: a.update(frequent=a["frequent"].astype(np.int64)), "frequent is int64"),
        (lambda a, w: a["frequent"].sort() or a["frequent"].put(3, END), "not ascending"),
        (lambda a, w: a.update(frequent=np.arange(4, 8, dtype=np.int32)), "END"),
        (lambda a, w: a.update(frequent=np.array([0, 3, 4, 5], np.int32)), "without PAD"),
        (lambda a, w: a["translations"].put(0, 30), "outside the vocabulary"),
        (lambda a, w: a["translations"].put(0, -1), "outside the vocabulary"),
        (lambda a, w: a["copies"].put(9, 30), "outside the vocabulary"),
        (lambda a, w: a.update(copies=a["copies"][1:].copy()), "frequent_probabilities is"),
    ],
)
def test_files_that_are_no_shortlist(
    saved: tuple[Shortlist, Path], change: Change, message: str
) -> None:
    rewrite(saved[1], change)
    with pytest.raises(InputError, match=message):
        Shortlist.load(saved[1])


def test_files_that_are_nothing(saved: tuple[Shortlist, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file"):
        Shortlist.load(tmp_path / "nowhere")
    safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / "other", {"format": "np"})
    with pytest.raises(InputError, match="safetensors file"):
        Shortlist.load(tmp_path / "other")
    content = saved[1].read_bytes()
    for broken in (b"", b"text", content[: len(content) // 2]):
        saved[1].write_bytes(broken)
        with pytest.raises(InputError, match="shortlist"):
            Shortlist.load(saved[1])


# ---- text ----


def write(path: Path, *lines: str) -> Path:
    path.write_bytes("".join(lines).encode())
    return path


def test_text_becomes_pairs(tokenizer_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "s", "the cat\n", "\n", "a dog\r\n", "dog " * 300 + "\n", "big")
    target = write(tmp_path / "t", "Hund\n", "Haus\n", "der Hund\n", "Hund\n", "groß\n")
    with WorkerPool(1) as pool:
        found = read_pairs(source, target, (tokenizer_model, tokenizer_model), pool)
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    wanted = [("the cat", "Hund"), ("a dog", "der Hund"), ("big", "groß")]
    expected = pairs_of([tuple(map(tokenizer.encode_source, pair)) for pair in wanted])
    for name in ("source", "source_offsets", "target", "target_offsets"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


def test_text_without_pairs(tokenizer_model: Path, tmp_path: Path) -> None:
    empty, short = write(tmp_path / "e", "\n"), write(tmp_path / "s", "a\n", "b\n")
    models = tokenizer_model, tokenizer_model
    with WorkerPool(1) as pool:
        with pytest.raises(InputError, match="both sides"):
            read_pairs(empty, empty, models, pool)
        with pytest.raises(InputError, match="2 lines"):
            read_pairs(short, empty, models, pool)


def test_finding_the_tokenizer(
    make_bundle: Callable[..., Path], tokenizer_model: Path, tmp_path: Path
) -> None:
    run, models = tmp_path / "run", (tokenizer_model, tokenizer_model)
    run.mkdir()
    (run / "tokenizer.spm").write_bytes(tokenizer_model.read_bytes())
    for path in (tokenizer_model, run, make_bundle()):
        assert tokenizer_hash(*find_tokenizers(path)) == tokenizer_hash(*models)
    with pytest.raises(InputError, match="there is no tokenizer"):
        find_tokenizers(tmp_path)
    with pytest.raises(InputError, match="cannot read the tokenizer"):
        tokenizer_hash(tokenizer_model, tmp_path / "nowhere")


def test_special_pieces_elsewhere_are_refused(tmp_path: Path) -> None:
    import sentencepiece

    with (tmp_path / "other.spm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c"] * 20), model_writer=file, vocab_size=8, minloglevel=2
        )
    with pytest.raises(InputError, match=r"\(-1.*1, 2\)"):
        find_tokenizers(tmp_path / "other.spm")


def test_coverage(tokenizer_model: Path) -> None:
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    size, none = tokenizer.vocabulary_size, np.zeros((tokenizer.vocabulary_size, 1), np.float32)
    cat, house = tokenizer.encode_source("cat")[-1], tokenizer.encode_target("Haus")[-1]
    rows = np.zeros((size, 1), np.int32)
    copies = shared_copies(size)
    made = Shortlist(
        np.array([END], np.int32), np.array([1]), none, rows, none, copies, size, "", 1, 1
    )
    rows[cat] = house
    found = measure_coverage(made, [("cat", "Haus"), ("dog", "Haus"), ("", "Haus")], tokenizer)
    count = len(tokenizer.encode_target("Haus"))
    assert (found.tokens, found.inside, found.sentences) == (2 * count, 1, 2)
    assert found.whole == (count == 1)
    assert found.list_tokens == 3
    with pytest.raises(InputError, match="coverage"):
        measure_coverage(made, [("", "a")], tokenizer)
