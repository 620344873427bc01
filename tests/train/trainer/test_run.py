"""Preparation of a run: input files, refusals, kept and deleted files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.runs import prepare_text

from translate_trt.runtime.bundle.term_annotation import TermAnnotation
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import (
    CheckpointError,
    InputError,
    OptionError,
    OutputError,
    TranslateTrtError,
)
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import AVERAGED, DecodingDefaults, open_checkpoint
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.trainer import load_data as module
from translate_trt.train.trainer.distributed import Group, choose_device
from translate_trt.train.trainer.load_data import TextFiles, TextPair
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.run import prepare_job

pytestmark = pytest.mark.slow

Text = TextFiles
Run = Callable[..., Path]
Settings = dict[str, Any]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_job_has_the_data_and_settings(text: Text, settings: Settings, tmp_path: Path) -> None:
    job = prepare_job(text, tmp_path / "run", "tiny", {**settings, "vocabulary_size": 5000})
    assert job.settings.decoding == DecodingDefaults("en", "de")
    assert len(job.data.train) == 200
    assert len(job.data.validation.data) == len(job.data.validation.source) == 10
    assert job.data.validation.reference == text[1].target.read_text().splitlines()
    assert 260 < job.settings.model.vocabulary_size < 5000  # limited by the text
    assert (job.settings.model.d_model, job.settings.train.warmup_steps) == (32, 20)
    assert job.settings.train.learning_rate_scale == 0.8  # the preset's
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    assert saved["model"] == vars(job.settings.model)
    assert saved["train"] == vars(job.settings.train)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a.en", "a.de", ("en", "de")),
        ("a.ast", "a.txt", ("ast", "txt")),
        ("a.tok", "en", ("tok", None)),
        ("a.en.gz", "a.de.gz", ("en", "de")),
        ("a.text", "a.d3", (None, None)),
    ],
)
def test_languages_are_read_from_the_endings(
    source: str, target: str, expected: tuple[str | None, str | None]
) -> None:
    assert TextPair(Path(source), Path(target)).languages == expected


def test_a_resumed_run_keeps_its_settings(trained: Run, text: Text, tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=2)
    before = (tmp_path / "run" / "run.json").read_text()
    for name, value in (("d_ff", 64), ("seed", 5), ("dropout", 0.0), ("average_checkpoints", 3)):
        with pytest.raises(OptionError, match=rf"\b{name}\b"):
            prepare_job(text, tmp_path / "run", "tiny", {name: value}, resume=True)
    assert (tmp_path / "run" / "run.json").read_text() == before
    longer = {"steps": 30, "cooldown_steps": 9}
    job = prepare_job(text, tmp_path / "run", "tiny", longer, resume=True)
    assert (job.settings.train.steps, job.settings.train.cooldown_steps) == (30, 9)
    kept = {**vars(job.settings.train), "steps": 2, "cooldown_steps": 0}
    assert kept == json.loads(before)["train"]
    assert vars(job.settings.model) == json.loads(before)["model"]


def test_a_resumed_run_warns_of_what_its_preset_would_change(
    trained: Run, text: Text, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path / "run", steps=2)
    caplog.clear()
    asked = settings | {"steps": 30}
    assert prepare_job(text, tmp_path / "run", "tiny", asked, resume=True)
    assert prepare_job(text, tmp_path / "run", None, {}, resume=True)
    assert not caplog.records
    asked = {name: value for name, value in settings.items() if name not in ("dropout", "heads")}
    job = prepare_job(text, tmp_path / "run", "tiny-h16", asked, resume=True)
    (record,) = caplog.records
    assert "tiny-h16" in record.getMessage()
    assert "dropout" in record.getMessage()
    assert job.settings.model.heads == 2


def test_other_data_is_noticed(
    run: Run, trained: Run, write_pairs: Callable[..., TextPair], tmp_path: Path
) -> None:
    trained(tmp_path / "run", steps=2)
    write_pairs("train", 200, 9)
    before = names(tmp_path / "run")
    with pytest.raises(InputError, match="other data"):
        run(tmp_path / "run", resume=True, steps=20)
    assert names(tmp_path / "run") == before


def test_a_damaged_settings_file_is_named(run: Run, trained: Run, tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=2)
    for content in ("{", '{"model": {}, "train": {}}', "{}"):
        (tmp_path / "run" / "run.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"run\.json"):
            run(tmp_path / "run", resume=True)


def test_an_existing_run_is_refused_and_with_force_replaced(
    run: Run, trained: Run, text: Text, settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    trained(out, steps=2)
    before = names(out)
    with pytest.raises(OutputError, match=r"--resume.*--force"):
        run(out, steps=2)
    assert names(out) == before
    (out / "notes.txt").write_text("mine")
    (out / "metrics.damaged").touch()
    prepare_job(text, out, "tiny", settings, force=True)
    assert names(out) == ["notes.txt", "run.json", "tokenizer.spm"]
    (tmp_path / "empty").mkdir()
    prepare_job(text, tmp_path / "empty", "tiny", settings)


@pytest.mark.parametrize(
    ("preset", "change"),
    [
        ("huge", {}),
        ("tiny", {"max_length": 1}),  # drops all pairs
    ],
)
def test_a_mistyped_setting_does_not_cost_the_old_run(
    trained: Run, text: Text, settings: Settings, tmp_path: Path, preset: str, change: Settings
) -> None:
    trained(tmp_path / "run", steps=2)
    before = names(tmp_path / "run")
    with pytest.raises(TranslateTrtError):
        prepare_job(text, tmp_path / "run", preset, {**settings, **change}, force=True)
    assert names(tmp_path / "run") == before


def test_resume_and_force_exclude_each_other(trained: Run, text: Text, tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=2)
    with pytest.raises(OptionError, match=r"--resume.*--force"):
        prepare_job(text, tmp_path / "run", "tiny", {}, resume=True, force=True)
    assert (tmp_path / "run" / AVERAGED).exists()


def test_resume_replaces_nothing_without_a_run(
    text: Text, settings: Settings, tmp_path: Path
) -> None:
    weights = tmp_path / "run" / "checkpoint-500" / "pytorch_model.bin"
    weights.parent.mkdir(parents=True)
    weights.write_text("of another program")
    with pytest.raises(OutputError, match=r"checkpoint-500.*run\.json"):
        prepare_job(text, tmp_path / "run", "tiny", settings, resume=True)
    assert weights.read_text() == "of another program"


@pytest.mark.parametrize("resume", [False, True])
def test_out_is_a_file(text: Text, settings: Settings, tmp_path: Path, resume: bool) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file"):
        prepare_job(text, tmp_path / "file", "tiny", settings, resume=resume)
    assert (tmp_path / "file").read_text() == "mine"


def test_unequal_and_empty_files(text: Text, settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "run"
    unequal = TextPair(text[0].source, text[1].target)
    with pytest.raises(InputError, match=r"200 lines.*10"):
        prepare_job(TextFiles(unequal, text[1]), out, "tiny", settings)
    with pytest.raises(InputError, match=r"200 lines.*10"):
        prepare_job(TextFiles(text[0], unequal), out, "tiny", settings)
    empty = TextPair(tmp_path / "empty.en", tmp_path / "empty.de")
    empty.source.touch()
    empty.target.touch()
    with pytest.raises(InputError, match=r"empty\.en is empty; there is nothing to train on"):
        prepare_job(TextFiles(empty, text[1]), out, "tiny", settings)
    with pytest.raises(InputError, match=r"empty\.en is empty; validation"):
        prepare_job(TextFiles(text[0], empty), out, "tiny", settings)
    assert not out.exists()


def test_pairs_longer_than_the_limit_are_left_out_of_training_alone(
    text: Text, settings: Settings, tmp_path: Path
) -> None:
    whole = prepare_job(text, tmp_path / "whole", "tiny", settings)
    cut = prepare_job(text, tmp_path / "cut", "tiny", {**settings, "max_length": 6})
    assert 0 < len(cut.data.train) < len(whole.data.train)
    assert max(cut.data.train.source.lengths.max(), cut.data.train.target.lengths.max()) <= 6
    assert len(cut.data.validation.data) == len(whole.data.validation.data)
    with pytest.raises(InputError, match="sentence pair"):
        prepare_job(text, tmp_path / "none", "tiny", {**settings, "max_length": 1})


def test_the_seed_decides_on_which_text_the_vocabulary_is_trained(
    text: Text, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VOCABULARY_SENTENCES", 60)
    models = []
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        job = prepare_job(text, tmp_path / name, "tiny", {**settings, "seed": seed})
        models.append(job.data.tokenizers[0].read_bytes())
    assert models[0] == models[1] != models[2]


def test_text_is_tokenized_some_lines_at_a_time(
    text: Text, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare_job(text, tmp_path / "whole", "tiny", settings)
    sizes, encode = [], Tokenizer.encode_source_batch

    def note(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        sizes.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_source_batch", note)
    monkeypatch.setattr(module, "CHUNK_LINES", 60)
    parts = prepare_job(text, tmp_path / "parts", "tiny", settings)
    assert sizes == [60, 60, 60, 20, 10]
    assert parts.fingerprint == whole.fingerprint


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU here")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(OptionError, match=r"--device cuda.*--device cpu"):
        choose_device("cuda")


@pytest.fixture
def prepared(text: Text, tmp_path: Path) -> Path:
    """Directory of the text, prepared with a vocabulary of 330 tokens."""
    return prepare_text(text, tmp_path / "data").path


def test_a_job_of_prepared_data(prepared: Path, settings: Settings, tmp_path: Path) -> None:
    del settings["vocabulary_size"]
    out = tmp_path / "run"
    job = prepare_job(open_prepared(prepared), out, "tiny", settings)
    data = open_prepared(prepared)
    assert job.settings.model.vocabulary_size == data.vocabulary_size
    assert (out / "tokenizer.spm").read_bytes() == (prepared / "tokenizer.spm").read_bytes()
    assert job.settings.decoding == DecodingDefaults("en", "de")
    assert len(job.data.validation.source) == 10
    averaged = Trainer(job, Group(torch.device("cpu"))).run()
    assert averaged is not None
    checkpoint = open_checkpoint(averaged)
    assert checkpoint.load_model().embedding.num_embeddings == data.vocabulary_size
    # A resumed run continues; changed data is refused.
    job = prepare_job(open_prepared(prepared), out, "tiny", {"steps": 14}, resume=True)
    trainer = Trainer(job, Group(torch.device("cpu")), resume=True)
    assert trainer.step == 12
    index = json.loads((prepared / "data.json").read_text())
    index["splits"]["train"]["fingerprint"] += 1
    (prepared / "data.json").write_text(json.dumps(index))
    job = prepare_job(open_prepared(prepared), out, "tiny", {"steps": 14}, resume=True)
    with pytest.raises(InputError, match="other data"):
        Trainer(job, Group(torch.device("cpu")), resume=True)


def test_a_model_of_annotated_data_says_so(
    prepared: Path, text: Text, settings: Settings, tmp_path: Path
) -> None:
    del settings["vocabulary_size"]
    source, target = (side.read_text().splitlines() for side in (text[0].source, text[0].target))
    glossary = tmp_path / "glossary.tsv"
    glossary.write_text(f"{source[0].split()[0]}\t{target[0].split()[0]}\n")
    flags = ["--terminology", str(glossary), "--terminology-form", "replace"]
    data = prepare_text(text, tmp_path / "terms", *flags)
    assert data.index["terminology"]["annotated"] > 0
    job = prepare_job(data, tmp_path / "run", "tiny", settings)
    assert job.settings.decoding.term_annotation == TermAnnotation("replace")
    # A resumed run has it from run.json, and a plain model's vocabulary lacks the symbols.
    job = prepare_job(data, tmp_path / "run", "tiny", {}, resume=True)
    assert job.settings.decoding.term_annotation == TermAnnotation("replace")
    with pytest.raises(OptionError, match="another vocabulary"):
        prepare_job(open_prepared(prepared), tmp_path / "run", "tiny", {}, resume=True)


def test_prepared_data_that_was_damaged_ends_the_run(
    prepared: Path, settings: Settings, tmp_path: Path
) -> None:
    del settings["vocabulary_size"]
    path = prepared / "train.target.tokens"
    tokens = np.fromfile(path, dtype=open_prepared(prepared).token_type)
    tokens[0] = 9 if tokens[0] != 9 else 10
    tokens.tofile(path)
    job = prepare_job(open_prepared(prepared), tmp_path / "run", "tiny", settings)
    with pytest.raises(InputError, match="fingerprint"):
        Trainer(job, Group(torch.device("cpu"))).run()
    assert not (tmp_path / "run" / AVERAGED).exists()
    tokens[:] = 60_000
    tokens.tofile(path)
    job = prepare_job(open_prepared(prepared), tmp_path / "run", "tiny", settings, force=True)
    with pytest.raises(InputError, match=r"a target token has id 60000|have fingerprint"):
        Trainer(job, Group(torch.device("cpu"))).run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_size": 320}, r"vocabulary.*3"),
        ({"max_length": 5}, "prepare it with --max-pair-length 5"),
        ({"positions": "learned", "max_positions": 6}, r"6: raise.*--max-positions"),
        ({"positions": "learned", "max_positions": 48, "max_length": 5}, "--max-pair-length 5"),
    ],
)
def test_settings_that_the_data_was_not_prepared_for(
    change: Settings, message: str, prepared: Path, settings: Settings, tmp_path: Path
) -> None:
    del settings["vocabulary_size"]
    with pytest.raises(OptionError, match=message):
        prepare_job(open_prepared(prepared), tmp_path / "run", "tiny", {**settings, **change})
    assert not (tmp_path / "run").exists()


def test_the_papers_recipe_for_a_corpus(prepared: Path, settings: Settings, tmp_path: Path) -> None:
    index = json.loads((prepared / "data.json").read_text())
    (prepared / "data.json").write_text(json.dumps({**index, "name": "wmt14-en-fr"}))
    del settings["vocabulary_size"], settings["dropout"]
    job = prepare_job(open_prepared(prepared), tmp_path / "run", "big", settings)
    assert job.settings.model.dropout == 0.1
    given = {**settings, "dropout": 0.2}
    prepare_job(open_prepared(prepared), tmp_path / "own", "big", given)
    job = prepare_job(open_prepared(prepared), tmp_path / "own", "big", settings, resume=True)
    assert job.settings.model.dropout == 0.2


def test_text_and_prepared_data_exclude_each_other(text: Text, tmp_path: Path) -> None:
    train = ["--train", str(text[0].source), str(text[0].target)]
    for arguments in ([], train, [*train, "--data", str(tmp_path)]):
        done = CliRunner().invoke(main, ["train", "--output", str(tmp_path / "run"), *arguments])
        assert done.exit_code == 2
        assert "give --train and --valid, or --data alone" in done.output
