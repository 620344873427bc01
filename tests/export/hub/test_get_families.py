"""`translate-trt get` of every other family: tokens of the toolkit that made the model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import WORDS
from support.ctranslate2_models import save_random_model, words
from support.hub_server import Hub

pytest.importorskip("huggingface_hub", reason="the hub packages are needed")
pytest.importorskip("transformers", reason="transformers, which makes the models, is needed")
from support.hugging_face_models import Pair, m2m100_pair, mbart_pair, nllb_pair, train_pieces

from translate_trt.runtime.cli import main
from translate_trt.runtime.model_store import find_model, installed_bundle
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator

pytestmark = pytest.mark.nightly


def installed(hub: Hub, name: str, directory: Path) -> Translator:
    """Install the model of a directory by its name, in fp32, with the verification."""
    sha = hub.repository(name, license="mit").commit_directory(directory)
    done = CliRunner().invoke(main, ["get", name, "--target", "onnx-fp32", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert "weak evidence" not in done.stderr
    record = find_model(name).record
    assert (record.revision, record.verification["onnx-fp32"]["passed"]) == (sha, True)
    return Translator(installed_bundle(name), threads=1)


@pytest.mark.parametrize(
    ("make", "kind", "source", "target"),
    [
        (m2m100_pair, "bpe", "en", "de"),
        (partial(nllb_pair, lively=True), "bpe", "eng_Latn", "fra_Latn"),
        (mbart_pair, "unigram", "en_XX", "fr_XX"),
    ],
    ids=["m2m100", "nllb", "mbart"],
)
def test_models_of_transformers(
    make: Callable[..., Pair], kind: str, source: str, target: str, hub: Hub, tmp_path: Path
) -> None:
    """Compare 200 sentences into a language with the `generate` of transformers."""
    pair = make(tmp_path / "model", train_pieces(WORDS.split("\n"), kind, 120))
    translator = installed(hub, "someone/model", pair.directory)
    options = SearchOptions(
        4, 1.0, "length", early_stopping=True, max_length=60, source_language=source,
        target_language=target,
    )  # fmt: skip
    token = pair.ids[pair.checkpoint.prompt.target_languages[target]]
    pair.assert_same_search(translator, options, forced_bos_token_id=token)


def test_ctranslate2(hub: Hub, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    source, target = words(30, "s"), words(40, "t")
    model = save_random_model(tmp_path / "model", (source, target))
    translator = installed(hub, "someone/opus-mt-de-fr", model)
    rng = random.Random(1)
    sentences = [rng.choices(source[4:], k=rng.randint(1, 9)) for _ in range(50)]
    expected = ctranslate2.Translator(str(model)).translate_batch(
        sentences, beam_size=1, max_decoding_length=10
    )
    found = translator.translate(list(map(" ".join, sentences)), SearchOptions(1, max_length=11))
    # Symbols, which the import bans or shows differently, end what can be compared.
    wanted = [
        list(itertools.takewhile(target[4:].__contains__, one.hypotheses[0])) for one in expected
    ]
    ours = [one.text.split()[: len(right)] for one, right in zip(found, wanted, strict=True)]
    assert ours == wanted
    assert sum(map(len, wanted)) > 100
