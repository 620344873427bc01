from __future__ import annotations

import csv
import functools
import math
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest
from support.data import folder_of

from translate_trt.runtime.io.lines import open_input, read_lines
from translate_trt.train.evaluation.scoring import (
    RESAMPLES,
    TEXT_METRICS,
    Metric,
    bleu,
    bleu_of_sums,
    bleu_statistics,
    make_metric,
    paired_bootstrap,
    resampled_scores,
    split_compounds,
    tokenize_moses,
)
from translate_trt.train.evaluation.sentence_scores import tokenization_of

pytestmark = pytest.mark.slow

SPLIT = " ##AT##-##AT## "


# ---- the paper's way ----


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rich-text format", f"rich{SPLIT}text format"),
        ("a-b-c", f"a{SPLIT}b-c"),  # the first match has consumed the b
        ("ä-ö-ü", f"ä{SPLIT}ö{SPLIT}ü"),  # two bytes each; Perl matches bytes
        ("Ein- und Ausgang", "Ein- und Ausgang"),
    ],
)
def test_compounds_are_split(line: str, expected: str) -> None:
    assert split_compounds(line) == expected


def test_compounds_are_split_as_perl_does_it() -> None:
    perl = shutil.which("perl")
    if perl is None:
        pytest.skip("there is no perl")
    generator = random.Random(1)
    lines = ["".join(generator.choices("--- ab.äß€\u2013\u00a0\t", k=14)) for _ in range(2000)]
    done = subprocess.run(
        [perl, "-ple", "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    assert [split_compounds(line) for line in lines] == done.stdout.decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("de", "Er sagte: Nein, danke.", "Er sagte : Nein , danke ."),
        ("de", "„Ja“, z. B. 5,3 %", "„ Ja “ , z. B. 5,3 %"),
        ("de", 'R&D [x] <b> "q" |', "R &amp; D &#91; x &#93; &lt; b &gt; &quot; q &quot; &#124;"),
        ("de", "Peter's UV-Licht...", "Peter &apos; s UV-Licht ..."),
        ("de", "am 28. Mai, am 28.", "am 28. Mai , am 28."),
        ("fr", "L'homme n'est-il pas là ?", "L&apos; homme n&apos; est-il pas là ?"),
    ],
)
def test_moses_tokens(language: str, line: str, expected: str) -> None:
    assert tokenize_moses([line], language) == [expected]


def tokenized(hypothesis: str, reference: str, language: str = "de") -> float:
    return make_metric("tokenized-bleu", [reference], language)([hypothesis]).score


def test_tokenized_bleu_knows_brevity_case_and_no_smoothing() -> None:
    line = "das ist ein sehr kleines Haus"
    assert tokenized(line, line) == pytest.approx(100)
    assert tokenized(line, f"{line} dort") == pytest.approx(100 * math.exp(1 - 7 / 6))
    assert tokenized(f"{line} dort", line) < 100
    assert tokenized(line.upper(), line) == 0
    assert tokenized("das ist ein Haus", "das ist ein Hund") == 0  # no matching four-gram: zero


def noisy(reference: Sequence[str], share: float, seed: int) -> list[str]:
    """Reference with some words replaced and some omitted."""
    generator = random.Random(seed)
    words = sorted({word for line in reference for word in line.split()})
    return [
        " ".join(
            generator.choice(words) if generator.random() < share else word
            for word in line.split()
            if generator.random() > share / 4
        )
        for line in reference
    ]


@pytest.fixture(scope="module")
def reference() -> list[str]:
    generator = random.Random(0)
    words = [
        "der", "ein", "UV-Licht", "Hund,", "läuft.", "groß", "und", "E-Mail-Adresse", "(sieht)"
    ]  # fmt: skip
    return [" ".join(generator.choices(words, k=generator.randint(0, 20))) for _ in range(200)]


# ---- the metrics and their labels ----


def test_every_metric_has_a_label_and_a_signature(reference: list[str]) -> None:
    found = {name: make_metric(name, reference)(noisy(reference, 0.1, 1)) for name in TEXT_METRICS}
    assert [score.label for score in found.values()] == [
        "BLEU", "chrF2", "chrF2++", "TER", "tokenized BLEU",
    ]  # fmt: skip
    parts = ["tok:13a", "nc:6|nw:0", "nc:6|nw:2", "tok:tercom", "tok:moses-de+compounds-split"]
    for part, score in zip(parts, found.values(), strict=True):
        assert f"|{part}|" in score.signature
        assert "case:mixed|" in score.signature or "case:lc|" in score.signature
    assert "not comparable" in found["tokenized-bleu"].note
    assert "sacremoses:" in found["tokenized-bleu"].signature
    assert len({round(score.score, 2) for score in found.values()}) == len(TEXT_METRICS)


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_several_references_score_as_in_sacrebleu(reference: list[str], name: str) -> None:
    hypotheses, other = noisy(reference, 0.3, 1), noisy(reference, 0.3, 2)
    metric = make_metric(name, reference, others=[other])
    best = make_metric(name, other)(other).score
    for lines in (reference, other):  # an empty reference costs chrF a little
        assert metric(lines).score == pytest.approx(best, abs=0.1)
    assert "nrefs:2|" in metric(hypotheses).signature
    if name == "bleu":
        expected = sacrebleu.corpus_bleu(hypotheses, [reference, other]).score
        assert metric(hypotheses).score == pytest.approx(expected)
        (difference,) = paired_bootstrap([reference, hypotheses], reference, others=[other])
        assert difference.value == pytest.approx(expected - 100)


def test_the_tokenization_of_bleu_is_a_choice(reference: list[str]) -> None:
    hypotheses = noisy(reference, 0.2, 1)
    scores = [
        make_metric("bleu", reference, tokenize=name)(hypotheses)
        for name in ("13a", "intl", "none")
    ]
    assert ["tok:intl" in score.signature for score in scores] == [False, True, False]
    assert len({score.score for score in scores}) == 3
    assert scores[0] == bleu(hypotheses, reference)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Two men are working.", "13a"),
        ("두 남자가 일하고 있다.", "13a"),  # Korean has spaces
        ("两个男人在工作。", "zh"),
        ("两个男人在使用 Linux 工作。", "zh"),
        ("二人の男が働いている。", "char"),
        ("ผู้ชายสองคนกำลังทำงาน", "char"),
        ("ຜູ້ຊາຍສອງຄົນກຳລັງເຮັດວຽກ", "char"),
        ("បុរសពីរនាក់កំពុងធ្វើការ", "char"),
        ("လူနှစ်ယောက် အလုပ်လုပ်နေသည်", "char"),
        ("སྐྱེས་པ་གཉིས་ལས་ཀ་བྱེད་བཞིན་འདུག", "char"),
        ("The word 男人 means man.", "13a"),
        ("", "13a"),
    ],
)
def test_scripts_without_spaces_are_tokenized_by_character(line: str, expected: str) -> None:
    assert tokenization_of([line]) == expected
    assert bleu([line], [line]).score == pytest.approx(100 if len(line) > 5 else 0)


# ---- paired bootstrap ----


def test_bootstrap_of_a_clear_difference(reference: list[str]) -> None:
    good, bad = noisy(reference, 0.1, 1), noisy(reference, 0.4, 2)
    same, worse = paired_bootstrap([good, good, bad], reference)
    assert (same.value, same.interval, same.p_value) == (0.0, (0.0, 0.0), 1.0)
    low, high = worse.interval
    assert low < worse.value < high < 0
    assert worse.value == pytest.approx(bleu(bad, reference).score - bleu(good, reference).score)
    assert worse.p_value == 1 / (RESAMPLES + 1)
    assert paired_bootstrap([good, bad], reference) == [worse]
    (better,) = paired_bootstrap([bad, good], reference)
    assert better.value == -worse.value
    assert better.interval == pytest.approx((-high, -low))
    assert better.p_value == worse.p_value


def test_bootstrap_draws_the_same_sentences_as_sacrebleu(reference: list[str]) -> None:
    # Its p-value is one-sided and of absolute differences, but of the same test sets.
    first, second = noisy(reference, 0.2, 1), noisy(reference, 0.21, 7)
    systems = [("first", first), ("second", second)]
    metrics = {"BLEU": sacrebleu.BLEU()}
    _, scores = PairedTest(systems, metrics, [reference], "bs", RESAMPLES)()
    theirs = scores["BLEU"][1]
    tables = [bleu_statistics(texts, reference) for texts in (first, second)]
    resampled = resampled_scores(tables, bleu_of_sums)
    assert resampled.shape == (RESAMPLES, 2)
    assert resampled[:, 1].mean() == pytest.approx(theirs.mean, abs=1e-6)  # theirs: float32
    sizes = np.abs(resampled[:, 1] - resampled[:, 0])
    (found,) = paired_bootstrap([first, second], reference)
    beyond = (sizes - sizes.mean() > abs(found.value)).sum()
    assert theirs.p_value == pytest.approx((beyond + 1) / (RESAMPLES + 1))


# ---- the systems of WMT17 ----

# Tokenized BLEU by Perl (Moses' tokenizer as it was until November 2018, tensor2tensor's
# substitution) and the formula of multi-bleu; chrF by chrF++.py, the metric's first program.
# Two that write odd characters (a byte order mark, no-break spaces), the best, the worst, and one
# that is neither; the others of the folder have their published scores as well.
SYSTEMS = {
    "PROMT-Rule-based.4735": (16.6685, 50.3511),
    "online-A.0": (20.6041, 52.0023),
    "online-F.0": (15.5561, 49.2588),
    "uedin-nmt.4722": (28.4589, 57.7227),
    "xmu.4910": (26.7862, 55.9642),
}
# Column of scores.tsv: metric, sacrebleu's tokenization (BLEU's), what our 100 is there, how exact
# it is.
COLUMNS = {
    # online-A begins with a byte order mark, which this column takes for a part of its first word,
    # and we for none of the text; everywhere else it is exact to its last digit.
    "bleu13a_computed_here": ("bleu", "13a", 100, 0.0002),
    "test.sh:MTEVAL": ("bleu", "13a", 100, 0.0051),  # by mteval-v13a.pl, rounded
    "test.sh:MTEVAL14": ("bleu", "intl", 100, 0.0051),
    "test.sh:CHRF": ("chrf", "13a", 100, 0.0001),  # by chrF++.py
    # By chrF++.py, which smooths sentences too short for an order of words; sacrebleu, unless told
    # to do so, leaves the order out. With its eps_smoothing both scores given agree to four digits.
    "test.sh:CHRFPP": ("chrf++", "13a", 100, 0.0051),
    "test.sh:TER": ("ter", "13a", 1, 0.00051),  # by tercom
}
EVERYWHERE = {"bleu13a_computed_here", "test.sh:MTEVAL", "test.sh:TER"}
# TER takes twice the time of all other metrics together, and most where most is wrong.
TER_OF = {"uedin-nmt.4722"}


def lines_of(path: Path) -> list[str]:
    with open_input(str(path)) as stream:
        return list(read_lines(stream, path.name))


@functools.cache
def metric_of_wmt17(name: str, tokenize: str = "13a") -> Metric:
    """Metric, cached because it has tokenized the reference."""
    right = lines_of(folder_of("wmt17-en-de-systems") / "reference.de")
    return make_metric(name, right, tokenize=tokenize)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name == "online-A.0" else pytest.param(name, marks=pytest.mark.nightly)
        for name in SYSTEMS
    ],
)
def test_the_systems_of_wmt17_have_their_published_scores(name: str) -> None:
    folder = folder_of("wmt17-en-de-systems")
    with (folder / "scores.tsv").open(encoding="utf-8") as file:
        rows = {row["system"]: row for row in csv.DictReader(file, delimiter="\t")}
    row = rows[f"newstest2017.{name}.en-de"]
    given = {column for column in COLUMNS if row[column]}
    assert given >= EVERYWHERE
    texts = lines_of(folder / f"newstest2017.{name}.en-de.de")
    found = functools.cache(lambda *metric: metric_of_wmt17(*metric)(texts).score)
    for column in given if name in TER_OF else given - {"test.sh:TER"}:
        *metric, hundred, tolerance = COLUMNS[column]
        score = found(*metric) * hundred / 100
        assert score == pytest.approx(float(row[column]), abs=tolerance), column
    tokenized, chrf = SYSTEMS[name]
    assert found("tokenized-bleu") == pytest.approx(tokenized, abs=0.0001)
    # PROMT writes 27 no-break spaces: characters to chrF++.py, blanks to sacrebleu.
    shown = [line.replace("\u00a0", "_") for line in texts]
    assert metric_of_wmt17("chrf")(shown).score == pytest.approx(chrf, abs=0.0001)
