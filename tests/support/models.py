"""Small models with non-trivial beam searches."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentencepiece import sentencepiece_model_pb2

from support.shared import SharedFiles
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.train.checkpoint import (
    Checkpoint,
    DecodingDefaults,
    save_checkpoint,
    save_imported,
)
from translate_trt.train.config import END, START, ModelConfig, TrainConfig
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.hashed_files import file_hashes
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.objective import Objective

NO_PROMPT = Prompt()


def lively_model(
    vocabulary_size: int,
    seed: int = 0,
    steps: int = 150,
    tokens: range = range(4, 40),
    **changes: Any,
) -> Transformer:
    """Return a model that was trained for a few seconds to reverse its source.

    A random one has nearly flat distributions: it would hardly end a sentence, and rounding would
    decide between its candidates. This one is sure enough, and unsure enough to need its beams. It
    knows the given tokens alone; the default ones are bytes, so that what it says is not text.
    `changes` are fields of ModelConfig. One that was trained before is not trained again.
    """
    return copy.deepcopy(_trained(vocabulary_size, seed, steps, tokens, **changes))


@functools.cache
def _trained(
    vocabulary_size: int, seed: int, steps: int, tokens: range, **changes: Any
) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 48, "heads": 4}
    config = ModelConfig(vocabulary_size=vocabulary_size, dropout=0.0, **(sizes | changes))
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    objective = Objective(model, 0.1, torch.float32, fuse=False)
    for _ in range(steps):
        lengths = torch.randint(1, 13, (48,)).tolist()
        sources = [
            torch.randint(tokens.start, tokens.stop, (length,)).tolist() for length in lengths
        ]
        data = encode_parallel(sources, [source[::-1] for source in sources], None)
        batch = data.for_model(model).batch(np.arange(len(sources)))
        loss = objective(batch).loss
        (loss / len(batch.targets)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def enlarge(model: Transformer) -> None:
    """Lift T5's residual sums and gated activations beyond FP16's range; translations stay."""
    model.embedding.weight *= 12_000
    for layer in (*model.encoder_layers, *model.decoder_layers):
        for name, parameter in layer.named_parameters():
            if ".output." in name or name.endswith("outer.bias"):
                parameter *= 12_000
            elif ".gate." in name:
                parameter *= 24_000
            elif name.endswith("outer.weight"):
                parameter *= 0.5


@pytest.fixture(scope="session", autouse=True)
def trained_once(shared: SharedFiles) -> Iterator[None]:
    """Make `lively_model` train each model once, in this run or before."""
    train = _trained
    instructions = torch.backends.cpu.get_cpu_capability()  # with others, weights differ a little

    @functools.cache
    def kept(vocabulary_size: int, seed: int, steps: int, tokens: range, **changes: Any) -> Any:
        asked = (vocabulary_size, seed, steps, tokens, sorted(changes.items()), instructions)
        path = shared.kept(
            "lively",
            ("support.models",),
            asked,
            lambda path: torch.save(train(vocabulary_size, seed, steps, tokens, **changes), path),
        )
        return torch.load(path, weights_only=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("support.models._trained", kept)
        yield


def save_model(model: Transformer, path: Path, tokenizer: Path, max_length: int = 48) -> Path:
    """Save a checkpoint of a model."""
    save_checkpoint(
        path,
        model.state_dict(),
        model.config,
        TrainConfig(max_length=max_length),
        (tokenizer, tokenizer),
        DecodingDefaults("en", "de"),
    )
    return path


#: A model with all that the paper's has not and imported ones may have, but for learned positions.
EVERYTHING_ELSE: dict[str, Any] = {
    "norm": "pre", "encoder_layers": 2, "decoder_layers": 1, "source_vocabulary_size": 300,
    "tied": "none", "output_bias": True, "activation": "gelu", "sinusoid": "tensor2tensor",
    "first_position": 1, "scale_embedding": False, "norm_embedding": True, "source_end": False,
}  # fmt: skip
#: And one with those, and one vocabulary.
LEARNED_POSITIONS: dict[str, Any] = {
    "positions": "learned", "max_positions": 98, "own_target_positions": True,
    "output_bias": True, "activation": "swish", "norm_embedding": True, "scale_embedding": False,
    "encoder_layers": 1,
}  # fmt: skip
#: T5 1.1 and MADLAD-400; heads are wider than d_model.
T5: dict[str, Any] = {
    "norm": "pre", "rms_norm": True, "activation": "gated-gelu", "relative_positions": 9,
    "heads": 5, "key_size": 8, "value_size": 8, "tied": "input",
    "output_bias": True, "decoder_layers": 1,
}  # fmt: skip

#: Settings of Marian's models, whatever their activation.
MARIAN: dict[str, Any] = {"output_bias": True, "sinusoid": "concatenated"}

#: Models that tests trace and compile for the passes, and how they differ from `lively_model`.
SHAPES: dict[str, dict[str, Any]] = {
    "post": {}, "pre": {"norm": "pre"}, "marian": MARIAN | {"activation": "swish"},
    "marian with relu": MARIAN | {"encoder_layers": 3, "decoder_layers": 1},
    "gelu, untied": {"activation": "gelu", "encoder_layers": 1, "decoder_layers": 3,
                     "tied": "none"},
    "ssru": {"decoder_mixer": "ssru", "decoder_layers": 3, "output_bias": True},
    "ssru, pre-norm, tied layers": {"norm": "pre", "decoder_mixer": "ssru", "decoder_layers": 4,
                                    "decoder_ties": "1,1,2,2", "decoder_d_ff": 72},
    "pre-norm, tied layers": {"norm": "pre", "decoder_layers": 3, "decoder_ties": "1,2,1"},
}  # fmt: skip


def save_imported_model(
    model: Transformer, path: Path, tokenizer: Path, prompt: Prompt = NO_PROMPT
) -> Path:
    """Save an imported checkpoint; its source vocabulary is smaller if the model has two."""
    pieces = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.read_bytes())
    del pieces.pieces[model.config.input_vocabulary_size :]
    tokenizers = pieces.SerializeToString(), tokenizer.read_bytes()
    if not model.config.source_vocabulary_size:
        tokenizers = tokenizers[1], tokenizers[1]
    decoding = DecodingDefaults(search={"length_penalty": 1.0}, prompt=prompt)
    save_imported(path, model, tokenizers, {"max_length": 48}, decoding)
    return path


def record_hashes(file: Path) -> None:
    """Record the hashes of changed files in the config.json, state.json or run.json beside them."""
    values = json.loads(file.read_text(encoding="utf-8"))
    values["sha256"] = file_hashes(*(file.with_name(name) for name in values["sha256"]))
    file.write_text(json.dumps(values), encoding="utf-8")


def flip_bit(file: Path, place: float = 0.9) -> None:
    """Flip one bit at a relative position of a file; its size and header stay the same."""
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 4
    file.write_bytes(content)


@torch.inference_mode()
def log_probs(checkpoint: Checkpoint, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
    """Log-probabilities [T + 1, V] of the next token after each part of a target, all at once."""
    model = checkpoint.load_model()
    hidden = model(torch.tensor([[*source, END]]), None, torch.tensor([[START, *target]]))
    return model.project(hidden)[0].log_softmax(-1)
