"""Training of parsers: vocabularies, weights of corpora, and the choice of a checkpoint by F1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.parsers import SETTINGS

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.bracketings import build_tree
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import BEST, open_checkpoint
from translate_trt.train.data.token_files import PreparedData
from translate_trt.train.evaluation.scoring import make_metric
from translate_trt.train.evaluation.validation import reference_trees
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.run import prepare_job

pytestmark = pytest.mark.slow


def test_the_checkpoint_of_the_best_f1(parser_run: Path, parser_data: PreparedData) -> None:
    checkpoint = open_checkpoint(parser_run / BEST)
    beams = (checkpoint.model.vocabulary_size - 1) // 2  # fewer than the paper's 21 for few labels
    assert checkpoint.search == {
        "beam_size": beams, "length_penalty": 0.3, "max_extra_length": 300
    }  # fmt: skip
    assert checkpoint.decoding.greedy.max_extra_length == 300
    assert checkpoint.model.tied == "output"
    tokenizer = Tokenizer(*checkpoint.tokenizers)
    assert checkpoint.model.source_vocabulary_size == tokenizer.source_vocabulary_size
    assert checkpoint.model.vocabulary_size == tokenizer.vocabulary_size < 30

    words, labels = parser_data.text("valid")
    heads = checkpoint.alignment_heads
    assert heads == AttentionHeads(0, (0,))
    trees, _ = reference_trees(
        checkpoint.load_model(), tokenizer, words, checkpoint.decoding.greedy, heads
    )
    gold = [build_tree(a.split(), b.split()).text for a, b in zip(labels, words, strict=True)]
    assert gold == (parser_data.path / "valid.trees.txt").read_text().splitlines()
    f1 = make_metric("evalb", gold)(trees).details["F1 with gold tags"]
    validations = [entry for entry in read_metrics(parser_run) if "validation" in entry]
    scores = {entry["step"]: entry["validation"]["f1"] for entry in validations}
    assert list(scores) == [30, 60]
    best = checkpoint.train["selected"]
    assert best["metric"] == "f1"
    assert best["f1"] == max(scores.values()) == scores[best["step"]] == pytest.approx(f1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus_weights": "1"}, r"1 weights.*prepared"),
        ({"corpus_weights": "0.0001,0"}, "leaves"),
        ({"source_vocabulary_size": 400}, "--source-vocabulary-size"),
        ({"vocabulary_size": 400}, "--vocabulary-size"),
    ],
)
def test_settings_that_do_not_fit_the_trees(
    parser_data: PreparedData, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        prepare_job(parser_data, tmp_path / "run", "parsing", SETTINGS | settings)


def test_what_vocabularies_determine_does_not_change_on_resuming(
    parser_data: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SETTINGS | {"steps": 1}
    job = prepare_job(parser_data, tmp_path / "run", "tiny", settings | {"tied": "all"})
    assert job.settings.model.tied == "output"
    for asked in (settings | {"tied": "all"}, settings):
        again = prepare_job(parser_data, tmp_path / "run", "tiny", asked, resume=True)
        assert again.settings.model == job.settings.model
    assert "tied" not in caplog.text


def test_text_has_neither_trees_nor_corpora(text: TextFiles, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="best_metric f1"):
        prepare_job(text, tmp_path / "run", "tiny", {"best_metric": "f1"})
    with pytest.raises(OptionError, match=r"corpus_weights.*--data"):
        prepare_job(text, tmp_path / "run", "tiny", {"corpus_weights": "2,1"})


def test_two_vocabularies_of_text(
    text: TextFiles, settings: dict[str, Any], tmp_path: Path
) -> None:
    changed = settings | {
        "source_vocabulary_size": 300, "vocabulary_size": 290, "tied": "output"
    }  # fmt: skip
    job = prepare_job(text, tmp_path / "run", "tiny", changed)
    assert [path.name for path in job.data.tokenizers] == ["source.spm", "target.spm"]
    tokenizer = Tokenizer(*job.data.tokenizers)
    sizes = tokenizer.source_vocabulary_size, tokenizer.vocabulary_size
    assert sizes == (job.settings.model.source_vocabulary_size, job.settings.model.vocabulary_size)
    assert sizes[0] <= 300
    assert sizes[1] <= 290
