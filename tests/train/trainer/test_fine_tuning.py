"""Fine-tuning of imported and trained models (`translate-trt train --from`)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.compiled import compile_once
from support.marian_models import save_random_marian
from support.models import (
    EVERYTHING_ELSE,
    LEARNED_POSITIONS,
    NO_PROMPT,
    record_hashes,
    save_imported_model,
    save_model,
)
from support.runs import assert_equal_tensors, prepare_text
from support.shared import SharedFiles
from support.translations import assert_same

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import CheckpointError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import (
    AVERAGED,
    Checkpoint,
    DecodingDefaults,
    numbered_checkpoints,
    open_checkpoint,
)
from translate_trt.train.config import BANNED_BIAS, FINE_TUNE, PAD, START, ModelConfig
from translate_trt.train.evaluation.validation import validation_loss
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.metrics import Metrics, read_metrics
from translate_trt.train.trainer.run import prepare_job
from translate_trt.train.trainer.settings import Settings as RunSettings

pytestmark = pytest.mark.slow

Text = TextFiles
Settings = dict[str, Any]
CPU = Group(torch.device("cpu"))

#: Recipe with an effect within a second.
QUICK: Settings = {
    "batch_tokens": 1024, "micro_batch_tokens": 512, "steps": 16, "warmup_steps": 4,
    "learning_rate": 4e-3, "checkpoint_every": 8, "average_checkpoints": 2, "validate_every": 0,
    "log_every": 4, "precision": "fp32",
}  # fmt: skip
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 48, "heads": 4}
#: Token of the text that the tests can ban.
SILENT_PIECE = "<0x7A>"


def imported(
    directory: Path, tokenizer_model: Path, changes: Settings, prompt: Prompt = NO_PROMPT
) -> Path:
    """Checkpoint of a random model with these changes and some banned tokens."""
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    size = tokenizer.vocabulary_size
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocabulary_size=size, dropout=0.0, **(SIZES | changes)))
    assert model.output_bias is not None
    pieces = tokenizer.target_pieces(range(size))
    model.output_bias.data[[PAD, START, pieces.index(SILENT_PIECE)]] = BANNED_BIAS
    return save_imported_model(model, directory / "checkpoint", tokenizer_model, prompt)


def marian(directory: Path, tokenizer_model: Path) -> Path:
    """Checkpoint of `import marian-hf`, whose vocabulary lacks two pieces."""
    pytest.importorskip("transformers", reason="transformers, which makes the model, is missing")
    save_random_marian(directory / "marian", tokenizer_model, tokenizer_model, lacking=2)
    arguments = ["import", "marian-hf", str(directory / "marian"), "--languages", "de", "en"]
    done = CliRunner().invoke(main, [*arguments, "--output", str(directory / "checkpoint")])
    assert done.exit_code == 0, done.output
    return directory / "checkpoint"


@pytest.fixture
def start(tmp_path: Path, tokenizer_model: Path) -> Path:
    """Imported checkpoint with a vocabulary per side."""
    return imported(tmp_path, tokenizer_model, EVERYTHING_ELSE)


def fine_tune(text: Text, out: Path, start: Path | None, **changes: Any) -> Path:
    """Function that fine-tunes `start`, or else resumes the run in `out`."""
    resume = start is None
    job = prepare_job(text, out, "fine-tune", {**QUICK, **changes}, resume, start=start)
    averaged = Trainer(job, CPU, resume).run()
    assert averaged is not None
    return averaged


def assert_exports(shared: SharedFiles, checkpoint: Checkpoint, options: BuildOptions) -> None:
    """Check that the bundle of a checkpoint gives the tokens of the PyTorch search."""
    bundle = compile_once(shared, checkpoint, options)
    translator, tokenizer = Translator(bundle, threads=1), Tokenizer(*checkpoint.tokenizers)
    lines = ["one two", "three four five", "six", "ten nine eight seven"]
    sources = [tokenizer.encode_source(line) for line in lines]
    greedy = SearchOptions(1)
    expected = beam_search(checkpoint.load_model(), sources, greedy)
    assert_same(translator.translate_ids(sources, greedy), expected)


@pytest.mark.parametrize("kind", ["marian", "everything else", "learned positions"])
def test_an_imported_model_learns_and_keeps_its_shape(
    kind: str, text: Text, tmp_path: Path, tokenizer_model: Path, shared: SharedFiles
) -> None:
    makers: dict[str, Callable[[], Path]] = {
        "marian": lambda: marian(tmp_path, tokenizer_model),
        "everything else": lambda: imported(tmp_path, tokenizer_model, EVERYTHING_ELSE),
        "learned positions": lambda: imported(tmp_path, tokenizer_model, LEARNED_POSITIONS),
    }
    before = open_checkpoint(makers[kind]())
    if before.decoding.prompt.inline_languages:  # two: each line says which
        for pair in text:
            said = (f">>deu<< {line}\n" for line in pair.source.read_text().splitlines())
            pair.source.write_text("".join(said))
    out = tmp_path / "run"
    after = open_checkpoint(fine_tune(text, out, before.path))
    assert [path.name for path in numbered_checkpoints(out)][-1] == "checkpoint-00000016"
    # The run begins with the initial model, and learns.
    entries = read_metrics(out)
    first = next(entry for entry in entries if "validation" in entry)
    job = prepare_job(text, out, "fine-tune", {}, resume=True)
    expected = validation_loss(before.load_model(), job.data.validation.data)
    assert first["step"] == 0
    assert first["validation"]["loss"] == pytest.approx(expected, rel=1e-5)
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
    assert entries[-1]["averaged"]["loss"] < 0.8 * expected
    # The shape and the vocabulary are unchanged.
    assert vars(after.model) == {**vars(before.model), "dropout": 0.1}
    contents = [[path.read_bytes() for path in one.tokenizers] for one in (before, after)]
    assert contents[0] == contents[1]
    assert after.decoding.search == before.decoding.search != {}
    # The weights of banned tokens are bit-identical in every checkpoint.
    model, other = before.load_model(), after.load_model()
    banned_tokens = model.banned_tokens
    assert banned_tokens is not None
    assert len(banned_tokens) >= 3
    for found in (other, open_checkpoint(numbered_checkpoints(out)[-1]).load_model()):
        assert found.banned_tokens is not None
        assert torch.equal(found.banned_tokens, banned_tokens)
        for name in ("output_bias", "output_weight"):
            one, two = getattr(model, name), getattr(found, name)
            assert one is None or torch.equal(one[banned_tokens], two[banned_tokens])
            assert one is None or not torch.equal(one, two)
    if kind != "learned positions":  # which tests/export/importers/test_bart.py exports
        # Those with which other tests compile models of the same structure.
        options = BuildOptions(attention=True, max_source_length=48)
        assert_exports(shared, after, BuildOptions() if kind == "marian" else options)


def test_every_weight_gets_a_gradient(text: Text, tmp_path: Path, tokenizer_model: Path) -> None:
    """All parameters have gradients, as a group of processes requires for the exchange."""
    for number, changes in enumerate((EVERYTHING_ELSE, LEARNED_POSITIONS)):
        (tmp_path / str(number)).mkdir()
        path = imported(tmp_path / str(number), tokenizer_model, changes)
        out = tmp_path / str(number) / "run"
        trainer = Trainer(prepare_job(text, out, "fine-tune", QUICK, start=path), CPU)
        batch = trainer.job.data.train.for_model(trainer.model).batch(np.arange(9))
        trainer.objective(batch)[0].backward()
        lacking = [name for name, p in trainer.model.named_parameters() if p.grad is None]
        assert lacking == []


def test_resuming_is_exact_and_needs_the_checkpoint_no_more(
    text: Text, start: Path, tmp_path: Path
) -> None:
    whole, parts, killed = (tmp_path / name for name in ("whole", "parts", "killed"))
    fine_tune(text, whole, start, steps=11)
    fine_tune(text, parts, start, steps=7)
    prepare_job(text, killed, "fine-tune", {**QUICK, "steps": 11}, start=start)  # and no step
    shutil.rmtree(start)
    fine_tune(text, parts, None, steps=11)
    fine_tune(text, killed, None, steps=11)
    for other in (parts, killed):
        for name in ("model.safetensors", "training/optimizer.safetensors"):
            one, two = whole / "checkpoint-00000011", other / "checkpoint-00000011"
            assert_equal_tensors(one, two, name)
    # Step 0 is logged once, and the average leaves it out.
    assert [entry["step"] for entry in read_metrics(parts) if "validation" in entry] == [0]
    assert [entry["step"] for entry in read_metrics(killed) if "validation" in entry] == [0]
    fine_tune(text, whole, None, steps=12, checkpoint_every=8)
    assert open_checkpoint(whole).path.name == AVERAGED


def test_the_average_leaves_the_beginning_out(text: Text, start: Path, tmp_path: Path) -> None:
    averaged = fine_tune(text, tmp_path / "run", start, steps=2, average_checkpoints=5)
    names = [path.name for path in numbered_checkpoints(tmp_path / "run")]
    assert names == ["checkpoint-00000000", "checkpoint-00000002"]
    assert_equal_tensors(tmp_path / "run" / names[1], averaged)
    assert_equal_tensors(tmp_path / "run" / names[0], start)


def test_a_run_without_its_initial_model_is_not_resumed(
    text: Text, start: Path, tmp_path: Path
) -> None:
    prepare_job(text, tmp_path / "run", "fine-tune", QUICK, start=start)
    shutil.rmtree(tmp_path / "run/checkpoint-00000000")
    job = prepare_job(text, tmp_path / "run", "fine-tune", QUICK, resume=True)
    with pytest.raises(CheckpointError, match="--from"):
        Trainer(job, CPU, resume=True)


def own(directory: Path, tokenizer_model: Path, dropout: float = 0.3) -> Path:
    """Checkpoint of a model that was trained here."""
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    config = ModelConfig(vocabulary_size=size, dropout=dropout, **SIZES)
    return save_model(Transformer(config), directory / "own/checkpoint-00000007", tokenizer_model)


def test_settings(text: Text, tmp_path: Path, tokenizer_model: Path, start: Path) -> None:
    def settings(name: str, path: Path, recipe: str, **changes: Any) -> RunSettings:
        return prepare_job(text, tmp_path / name, recipe, changes, start=path).settings

    path = own(tmp_path, tokenizer_model)
    plain = settings("plain", path.parent, "fine-tune")  # a run stands for its checkpoint
    assert plain.train == FINE_TUNE
    assert plain.model.dropout == 0.3
    assert (plain.decoding.source_language, plain.decoding.target_language) == ("en", "de")
    assert plain.origin is not None
    assert plain.origin["path"] == str(path)
    assert settings("none", start, "fine-tune", dropout=0.0).model.dropout == 0.0
    other = settings("other", start, "tiny", steps=9)
    assert (other.train.warmup_steps, other.train.learning_rate, other.train.steps) == (300, 0, 9)
    assert other.model.d_model == 32
    record = json.loads((tmp_path / "other/checkpoint-00000000/config.json").read_text())
    assert record["train"]["from"]["train"] == {"max_length": 48}


def test_settings_that_would_change_the_model(text: Text, start: Path, tmp_path: Path) -> None:
    changes = {"d_model": 32, "tied": "all", "dropout": 0.2}
    with pytest.raises(OptionError, match="--d-model, --tied: with --from"):
        prepare_job(text, tmp_path / "run", "fine-tune", changes, start=start)
    assert not (tmp_path / "run").exists()


def test_a_prompt(text: Text, tmp_path: Path, tokenizer_model: Path) -> None:
    tokens = {"deu": 7, "fra": 8}
    prompt = Prompt((5,), (6,), {}, tokens, "source")
    start = imported(tmp_path, tokenizer_model, LEARNED_POSITIONS, prompt)
    for pair, lines in ((text[0], 200), (text[1], 10)):
        said = "".join(f">>deu<< {line}\n" for line in pair.source.read_text().splitlines())
        pair.source.write_text(">>fra<< one two\n" + said)
        pair.target.write_text("eins zwei\n" + pair.target.read_text())
        assert said.count("\n") == lines
    job = prepare_job(text, tmp_path / "run", "fine-tune", QUICK, start=start)
    tokenizer = Tokenizer(*job.data.tokenizers)
    first, second = (
        job.data.train.source.tokens[begin:] for begin in job.data.train.source.offsets[:2]
    )
    assert first[:4].tolist() == [5, 8, *tokenizer.encode_source("one two")[:2]]
    line = text[0].source.read_text().splitlines()[1].removeprefix(">>deu<< ")
    assert second[:4].tolist() == [5, 7, *tokenizer.encode_source(line)[:2]]
    assert job.data.train.target.tokens[:2].tolist() == [6, tokenizer.encode_target("eins zwei")[0]]
    assert job.settings.decoding == DecodingDefaults("en", "de", {"length_penalty": 1.0}, prompt)
    trainer = Trainer(job, CPU)
    metrics = Metrics(job.out, 0, 1)
    trainer.validate("validation", metrics)
    metrics.close()
    assert open_checkpoint(tmp_path / "run").prompt == prompt
    again = prepare_job(text, tmp_path / "run", "fine-tune", QUICK, resume=True)
    assert (again.settings.decoding, again.fingerprint) == (job.settings.decoding, job.fingerprint)
    text[1].source.write_text("\none two\n")
    text[1].target.write_text("\neins zwei\n")
    with pytest.raises(OptionError, match=r"line 2 of .*val.*\.en does not begin .*>>deu<<"):
        prepare_job(text, tmp_path / "other", "fine-tune", QUICK, start=start)
    german = QUICK | {"target_language": "deu"}
    prepare_job(text, tmp_path / "other", "fine-tune", german, start=start)


def test_a_multilingual_model_needs_a_language(
    text: Text, tmp_path: Path, tokenizer_model: Path
) -> None:
    prompt = Prompt(target_languages={"deu": 7, "fra": 8})
    start = imported(tmp_path, tokenizer_model, LEARNED_POSITIONS, prompt)
    out = tmp_path / "run"
    for changes, message in (({}, "is not given"), ({"target_language": "xxx"}, "is unknown to")):
        with pytest.raises(OptionError, match=f"target_language .*{message}"):
            prepare_job(text, out, "fine-tune", QUICK | changes, start=start)
    french = QUICK | {"target_language": "fra"}
    job = prepare_job(text, out, "fine-tune", french, start=start)
    assert (job.data.train.target.tokens[job.data.train.target.offsets[:-1]] == 8).all()
    assert job.settings.decoding.search["target_language"] == "fra"
    again = prepare_job(text, out, "fine-tune", french, resume=True)
    assert again.fingerprint == job.fingerprint
    with pytest.raises(OptionError, match="a resumed run keeps its settings, but target_language"):
        prepare_job(text, out, "fine-tune", QUICK | {"target_language": "deu"}, resume=True)
    with pytest.raises(OptionError, match="target_language applies to fine-tuning a multilingual"):
        prepare_job(text, tmp_path / "new", "tiny", {"target_language": "fra"})


def test_without_a_checkpoint_nothing_imported_is_trained(text: Text, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="activation gelu"):
        prepare_job(text, tmp_path / "run", "tiny", {"activation": "gelu"})
    with pytest.raises(OptionError, match="trained model"):
        prepare_job(text, tmp_path / "run", "fine-tune", {})


def test_paths_without_a_checkpoint(
    text: Text, start: Path, tmp_path: Path, make_bundle: Callable[..., Path]
) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(CheckpointError) as raised:
            prepare_job(text, tmp_path / "run", "fine-tune", QUICK, start=path)
        assert not (tmp_path / "run").exists()
        return str(raised.value)

    assert "is a bundle and holds no checkpoint" in refused(make_bundle())
    assert "nowhere holds no checkpoint" in refused(tmp_path / "nowhere")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/config.json").write_text('{"model_type": "marian"}')
    assert "Convert such a model with: translate-trt import" in refused(tmp_path / "theirs")
    weights = start / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert "is damaged" in refused(start)


def test_tokenizers_of_another_model(text: Text, start: Path, tmp_path: Path) -> None:
    shutil.copyfile(start / "source.spm", start / "target.spm")
    record_hashes(start / "config.json")
    with pytest.raises(CheckpointError, match=r"target\.spm.*300 tokens"):
        prepare_job(text, tmp_path / "run", "fine-tune", QUICK, start=start)


def test_the_checkpoint_of_a_resumed_run(
    text: Text, start: Path, tmp_path: Path, tokenizer_model: Path
) -> None:
    """A repeated command may name the same checkpoint, but not another one."""
    other, run, plain = own(tmp_path, tokenizer_model), tmp_path / "run", tmp_path / "plain"
    prepare_job(text, run, "fine-tune", QUICK, resume=True, start=start)
    again = prepare_job(text, run, "fine-tune", QUICK, resume=True, start=start)
    assert again.settings.origin is not None
    with pytest.raises(OptionError, match=r"run began with .*/checkpoint, not with --from .*/own"):
        prepare_job(text, run, "fine-tune", QUICK, resume=True, start=other)
    prepare_job(text, plain, "tiny", {"vocabulary_size": 320, **SIZES})
    with pytest.raises(OptionError, match="plain began with random weights, not with --from"):
        prepare_job(text, plain, "tiny", {}, resume=True, start=other)
    with pytest.raises(OptionError, match="--output"):
        prepare_job(text, run, "fine-tune", QUICK, force=True, start=run)
    assert (run / "checkpoint-00000000/model.safetensors").is_file()


def test_prepared_data(text: Text, start: Path, tmp_path: Path) -> None:
    data = prepare_text(text, tmp_path / "data")
    with pytest.raises(OptionError, match=r"--train.*--val"):
        prepare_job(data, tmp_path / "run", "fine-tune", QUICK, start=start)
    path = own(tmp_path, data.path / "tokenizer.spm")
    job = prepare_job(data, tmp_path / "run", "fine-tune", QUICK, start=path)
    assert len(job.data.train) > 100
    assert_equal_tensors(tmp_path / "run/checkpoint-00000000", path)


def test_the_command(text: Text, start: Path, tmp_path: Path) -> None:
    command = ["train", "--from", str(start), "--output", str(tmp_path / "run"), "--steps", "2"]
    for name, pair in zip(("--train", "--valid"), text, strict=True):
        command += [name, *map(str, vars(pair).values())]
    done = CliRunner().invoke(main, [*command, "--learning-rate", "1e-3"])
    assert done.exit_code == 0, done.output
    assert "validation at step 0: loss" in done.output
    assert done.stdout.split()[-1] == str(tmp_path / "run" / AVERAGED)
    saved = json.loads((tmp_path / "run/run.json").read_text())["train"]
    assert (saved["warmup_steps"], saved["learning_rate"]) == (FINE_TUNE.warmup_steps, 1e-3)
    refused = CliRunner().invoke(main, [*command, "--force", "--heads", "2"])
    assert refused.exit_code == 2
    assert "--heads: with --from, the shape of the model is" in refused.output
