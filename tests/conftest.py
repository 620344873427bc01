"""Fixtures of several folders: small tokenizer models, and a bundle without real graphs."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sentencepiece

if TYPE_CHECKING:
    from support.shared import SharedFiles

# Before torch is imported, here or in a process that a test starts. The models of tests are so
# small that a second thread only makes the first one wait, and equal bits need an equal number.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop(
    "TRANSLATE_TRT_LIBRARY", None
)  # the library where it is built, unless a test chooses

from translate_trt.export.contract import make_contract
from translate_trt.runtime import native
from translate_trt.runtime.bundle.manifest import (
    FORMAT_VERSION,
    Limits,
    Manifest,
    ModelDescription,
    TargetEntry,
    hash_file,
    write_manifest,
)
from translate_trt.runtime.bundle.prompt import Prompt

pytest_plugins = ["support.gpu_kernels",  # before anything else imports Triton
                  "support.shared", "support.models", "support.bundles", "support.collection",
                  "support.cpp_library", "support.fake_driver", "support.kernels",
                  "support.operators", "support.parsers", "support.static_bundles",
                  "support.traces", "support.triton_server"]  # fmt: skip

# A shell that runs the tests in the background, or nohup, makes them and their children ignore
# these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

WORDS = """
    the a cat dog house tree runs sleeps eats green big small river walks over under
    Haus Hund läuft schläft frisst grün groß klein Fluss geht über unter
"""


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep engines that tests build out of the user's cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let translators find no libtranslate_trt, as where it is not built."""
    monkeypatch.setenv(native.VARIABLE, "none")


@pytest.fixture(scope="session")
def tokenizer_model(shared: SharedFiles) -> Path:
    """SentencePiece model with byte fallback, like those of training."""
    return shared.once("shared.spm", _train_tokenizer)


def _train_tokenizer(path: Path) -> None:
    rng, words = random.Random(1), WORDS.split()
    lines = [" ".join(rng.choices(words, k=rng.randint(2, 10))) + "." for _ in range(300)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="nmt_nfkc",
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())


@pytest.fixture
def make_bundle(tmp_path: Path, tokenizer_model: Path) -> Callable[..., Path]:
    """Factory of bundles whose graphs are a few bytes that no backend could load."""

    def make(name: str = "bundle", targets: tuple[str, ...] = ("onnx-fp32", "onnx-int8")) -> Path:
        bundle = tmp_path / name
        bundle.mkdir()
        shutil.copy(tokenizer_model, bundle / "shared.spm")
        tokenizer = hash_file(bundle, "shared.spm")
        entries = {}
        for target in targets:
            (bundle / "targets" / target).mkdir(parents=True)
            for role in ("encoder", "step"):
                (bundle / f"targets/{target}/{role}.onnx").write_text(f"{role} of {target}")
            entries[target] = TargetEntry(
                name=target,
                backend="onnxruntime",
                precision=target.removeprefix("onnx-"),
                files={
                    role: hash_file(bundle, f"targets/{target}/{role}.onnx")
                    for role in ("encoder", "step")
                },
                contract=make_contract(2, 4, 8, 8, attention=True),
                builder={"onnx": "1.2.3"},
                parity={"largest_difference": 2.5e-5} if target == "onnx-fp32" else None,
            )
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            created_by="translate-trt 0.1.0",
            source_language="en",
            target_language=None,
            model=ModelDescription(
                encoder_layers=2,
                decoder_layers=2,
                heads=4,
                key_size=8,
                value_size=8,
                model_size=32,
                feed_forward_size=64,
                vocabulary_size=320,
                start_token=2,
                end_token=3,
                pad_token=0,
                unknown_token=1,
                parameters=123456,
            ),
            limits=Limits(max_source_length=16, max_target_length=66),
            prompt=Prompt(),
            search={"beam_size": 4, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
            tokenizer={"source": tokenizer, "target": tokenizer},
            targets=entries,
            weights_sha256="ab" * 32,
        )
        write_manifest(bundle, manifest)
        return bundle

    return make
