"""Targets with a shortlist: the search over each sentence's own list of tokens."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from support.processor import saturates
from support.shortlists import TARGETS, listed_search, random_table
from support.translations import assert_independent, assert_same, random_sources, share_of_same

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.verify.layers import compare_layers
from translate_trt.export.verify.parity import verify
from translate_trt.runtime import kernels
from translate_trt.runtime.bundle.contract import ShortlistForm
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import BundleError, InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END
from translate_trt.train.shortlist.table import Shortlist

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table(checkpoint: Checkpoint) -> Shortlist:
    return random_table(checkpoint)


@pytest.fixture(scope="module")
def bundle(shortlist_bundle: Path) -> Path:
    return shortlist_bundle


@pytest.fixture(scope="module")
def translator(bundle: Path) -> Translator:
    return Translator(bundle, shortlist=True, threads=1)


@pytest.fixture(scope="module")
def references() -> dict[SearchOptions, list[list[Hypothesis]]]:
    """Hypotheses of the reference, searched once for all runs of the graphs."""
    return {}


def test_graphs_list_their_domains_in_one_order(bundle: Path) -> None:
    # A set's order is that of the process, and the files of a bundle must not depend on it. Passes
    # append the domains that they use.
    for path in bundle.glob("targets/*/*.onnx"):
        model = onnx.load(path, load_external_data=False)
        assert not model.opset_import[0].domain, path


# ---- the list of a sentence ----


def test_lists_are_those_of_the_table(table: Shortlist, bundle: Path) -> None:
    path = read_manifest(bundle).target(TARGETS[0]).files["encoder"].locate(bundle)
    encoder = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    sources = [[7, 7, 9, END], [50, END], random_sources(3, seed=2, longest=20)[2] + [END]]
    longest = max(map(len, sources))
    ids = np.array([s + [11] * (longest - len(s)) for s in sources])  # padded with a token
    lengths = np.array([len(s) for s in sources])
    inputs = {"source_ids": ids, "source_lengths": lengths}
    found = np.asarray(encoder.run(["shortlist"], inputs)[0])
    form = ShortlistForm(len(table.frequent), table.translations.shape[1])
    assert found.shape == (3, form.width(longest))
    for row, source in zip(found, sources, strict=True):
        tokens = row[row > 0]
        np.testing.assert_array_equal(tokens, table.for_sentence(source))
        # A batch of shorter sentences has fewer places: what is cut off then must be empty.
        assert not row[form.width(len(source)) :].any()


# ---- translations ----

OPTIONS = [
    SearchOptions(),
    SearchOptions(beam_size=1),
    SearchOptions(beam_size=8, num_hypotheses=8, length_penalty=2.0),
    SearchOptions(num_hypotheses=4, early_stopping=True, length_penalty_form="length"),
    SearchOptions(min_length=12, max_length=30),
    SearchOptions(num_hypotheses=4, return_attention=True),
    SearchOptions(repetition_penalty=1.3, no_repeat_ngram_size=2, suppress_sequences="7, 12 9"),
    SearchOptions(no_repeat_ngram_size=1, max_length=30),  # more marked tokens than a list has
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize("library", ["kernels", "no kernels"])
def test_equal_to_a_reference_with_the_same_lists(
    options: SearchOptions, library: str, bundle: Path, checkpoint: Checkpoint, table: Shortlist,
    references: dict[SearchOptions, list[list[Hypothesis]]],
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if library == "kernels":
        request.getfixturevalue("compiled_kernels")
    else:
        monkeypatch.setenv(kernels.VARIABLE, "none")
    translator = Translator(bundle, "onnx-fp32", shortlist=True, threads=1)
    # Of longer ones the model is so unsure that rounding orders its hypotheses.
    sources = random_sources(16, longest=12)
    found = translator.translate_ids(sources, options)
    if options not in references:
        references[options] = listed_search(checkpoint, table, sources, options)
    assert_same(found, references[options])


@pytest.mark.parametrize("target", TARGETS)
def test_a_batch_changes_no_bit_where_kernels_run(
    compiled_kernels: str, bundle: Path, target: str
) -> None:
    sources = random_sources(40, seed=3)
    translator = Translator(bundle, target, threads=1, batch_tokens=1)
    alone = [translator.translate_ids([source])[0] for source in sources]
    for seed, (batch_tokens, workers) in enumerate([(60, 1), (600, 2), (2000, 1)]):
        together = Translator(bundle, target, threads=1, batch_tokens=batch_tokens, workers=workers)
        assert_independent(alone, sources, together.translate_ids, seed)


def test_a_forced_token_needs_not_be_listed(translator: Translator, table: Shortlist) -> None:
    source = [7, 9, 12]
    listed = table.for_sentence(source)
    forced = next(token for token in range(4, 60) if token not in listed)
    [[best]] = translator.translate_ids([source], target_prefixes=[[forced]])
    assert best.tokens[0] == forced
    assert set(best.tokens[1:]) <= set(listed.tolist())
    assert np.isfinite(best.token_log_probs[0])


def test_8_bits_stay_near(bundle: Path, translator: Translator) -> None:
    if saturates():
        pytest.skip("8-bit matmuls of a shortlist saturate on this processor (docs/shortlist.md)")
    sources = random_sources(40, seed=4)
    exact = translator.translate_ids(sources)
    near = Translator(bundle, "onnx-int8", shortlist=True, threads=1).translate_ids(sources)
    assert share_of_same(near, exact) >= 0.5  # a small model is easily moved


@pytest.mark.usefixtures("compiled_kernels")
def test_8_bits_are_near_with_and_without_kernels(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if saturates():
        pytest.skip("8-bit matmuls of a shortlist saturate on this processor (docs/shortlist.md)")
    sources = random_sources(24, seed=5, longest=12)
    target = "onnx-int8-shortlist"
    with_kernels = Translator(bundle, target, threads=1).translate_ids(sources)
    monkeypatch.setenv(kernels.VARIABLE, "none")
    without = Translator(bundle, target, threads=1).translate_ids(sources)
    same = [(a, b) for [a], [b] in zip(with_kernels, without, strict=True) if a.tokens == b.tokens]
    assert len(same) >= 0.9 * len(sources)  # rounding moves an activation to its next step
    scores = np.array([(a.score, b.score) for a, b in same])
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], atol=5e-2)


# ---- the graphs ----


@pytest.mark.parametrize(("target", "name"), [(TARGETS[0], ""), (TARGETS[1], "_int8")])
def test_the_vocabulary_stands_once_in_a_step(bundle: Path, target: str, name: str) -> None:
    entry = read_manifest(bundle).target(target)
    graph = onnx.load(entry.files["step"].locate(bundle)).graph
    vocabulary = read_manifest(bundle).model.vocabulary_size
    tables = [one.name for one in graph.initializer if one.dims[:1] == [vocabulary]]
    assert [t for t in tables if not t.endswith("scale")] == [f"model.embedding.weight{name}"]


def test_the_manifest_says_how_long_lists_are(bundle: Path, compiled_bundle: Path) -> None:
    assert read_manifest(compiled_bundle).target("onnx-fp32").contract.shortlist is None
    assert read_manifest(bundle).target(TARGETS[1]).contract.shortlist == ShortlistForm(19, 4)


# ---- the commands ----


def test_info_says_how_long_lists_are(bundle: Path) -> None:
    shown = CliRunner().invoke(main, ["info", str(bundle)]).output
    assert shown.count("19 tokens, and up to 4 for each source token") == 2


def test_verify_asks_for_bleu(bundle: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    lines = ["the cat runs.", "a big dog sleeps", "the house under the tree"]
    found = verify(copy, checkpoint, lines, lines, ["onnx-fp32-shortlist"], threads=1)
    evidence = found["onnx-fp32-shortlist"]
    assert evidence.gate == "BLEU at most 0.3 lower"
    assert evidence.identical_percent < 100


def test_layers_are_compared_but_for_the_logits(bundle: Path, checkpoint: Checkpoint) -> None:
    [report] = compare_layers(bundle, checkpoint, ["the cat runs.", "a dog"], [TARGETS[0]], 1)
    assert report.first is None
    fused = [drift.tensor for drift in report.drifts if drift.relative is None]
    assert fused == ["logits"]


# ---- what is refused ----


def test_more_beams_than_lists_have_tokens_for(translator: Translator) -> None:
    translator.translate_ids([[7]], SearchOptions(beam_size=9))
    with pytest.raises(OptionError, match="beam_size 10"):
        translator.translate_ids([[7]], SearchOptions(beam_size=10))


def test_a_target_without_its_table() -> None:
    with pytest.raises(OptionError, match="onnx-fp32-shortlist"):
        BuildOptions(("onnx-fp32-shortlist",)).for_model(None)


def test_default_target(tmp_path: Path) -> None:
    """A model's own shortlist is used, unless the targets exclude it."""
    own, given = tmp_path / "own", tmp_path / "given"
    assert BuildOptions().for_model(None) == BuildOptions(("onnx-fp32",))
    expected = BuildOptions(("onnx-fp32-shortlist",), shortlist=own)
    assert BuildOptions().for_model(own) == expected
    assert BuildOptions(shortlist=given).for_model(own).shortlist == given
    assert BuildOptions(("onnx-int8-shortlist",)).for_model(own).shortlist == own
    assert BuildOptions(("onnx-int8",)).for_model(own) == BuildOptions(("onnx-int8",))


def test_a_table_without_a_target(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="add onnx-fp32-shortlist or onnx-int8-shortlist"):
        BuildOptions(("onnx-fp32",), shortlist=tmp_path)


def test_the_table_of_another_tokenizer(
    checkpoint: Checkpoint, table: Shortlist, tmp_path: Path
) -> None:
    path = tmp_path / "table.safetensors"
    dataclasses.replace(table, tokenizer_sha256="0" * 64).save(path)
    with pytest.raises(InputError, match="another tokenizer"):
        compile_bundle(checkpoint, tmp_path / "bundle", BuildOptions((TARGETS[0],), shortlist=path))
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_without_one(compiled_bundle: Path) -> None:
    with pytest.raises(BundleError, match="--target onnx-int8-shortlist"):
        Translator(compiled_bundle, "onnx-int8", shortlist=True)
