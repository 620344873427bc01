"""Checkpoints in OpenNMT-py's layout, compared with numpy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.importing import assert_same_logits
from support.numpy_transformer import (
    ACTIVATIONS,
    NumpyTransformer,
    RandomWeights,
    tensor2tensor_sinusoids,
)

from translate_trt.export.importers.opennmt_py import import_opennmt_py
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import open_checkpoint

WIDTH, INNER, HEADS = 32, 48, 4
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
SOURCE = [*SPECIAL, *(f"s{n}" for n in range(40))]
TARGET = [*SPECIAL, *(f"t{n}" for n in range(30))]
OPTIONS: dict[str, Any] = {
    "model_type": "text", "model_task": "seq2seq", "encoder_type": "transformer",
    "decoder_type": "transformer", "layers": -1, "enc_layers": 2, "dec_layers": 1,
    "hidden_size": WIDTH, "enc_hid_size": WIDTH, "dec_hid_size": WIDTH, "word_vec_size": WIDTH,
    "heads": HEADS, "transformer_ff": INNER, "position_encoding": True,
    "position_encoding_type": "SinusoidalInterleaved", "pos_ffn_activation_fn": "relu",
    "self_attn_type": "scaled-dot", "max_relative_positions": 0, "norm_eps": 1e-6,
    "add_qkvbias": False, "add_ffnbias": True, "copy_attn": False, "dropout": [0.1],
}  # fmt: skip
OTHER = {
    "position_encoding_type": "SinusoidalConcat", "pos_ffn_activation_fn": "gelu",
    "norm_eps": 1e-3, "add_qkvbias": True, "add_ffnbias": False,
}  # fmt: skip
VOCABULARIES: dict[str, Any] = {
    "src": SOURCE, "tgt": TARGET, "data_task": "seq2seq", "decoder_start_token": "<s>",
}  # fmt: skip


def positions_of(kind: str, count: int) -> np.ndarray:
    """Compute the sinusoids of onmt/modules/embeddings.py."""
    places = np.arange(count)
    if kind == "SinusoidalConcat":
        return tensor2tensor_sinusoids(places, WIDTH)
    table = np.zeros((count, WIDTH))
    angles = places[:, None] * np.exp(np.arange(0, WIDTH, 2) * -(np.log(10_000) / WIDTH))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def random_weights(options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return random weights, named as in onmt/encoders and onmt/decoders 3.5."""
    made = RandomWeights()
    table = torch.from_numpy(positions_of(options["position_encoding_type"], 5000)).float()
    for stack, tokens, layers in (
        ("encoder", SOURCE, "transformer"), ("decoder", TARGET, "transformer_layers"),
    ):  # fmt: skip
        place = f"{stack}.embeddings.make_embedding"
        made.add(f"{place}.emb_luts.0.weight", len(tokens), WIDTH)
        made.values[f"{place}.pe.pe"] = table[:, None].clone()
        for layer in range(options[f"{stack[:3]}_layers"]):
            place = f"{stack}.{layers}.{layer}"
            for part in ["self_attn", "context_attn"][: 1 + (stack == "decoder")]:
                for name in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                    made.add_linear(f"{place}.{part}.{name}", WIDTH, WIDTH, options["add_qkvbias"])
            made.add_linear(f"{place}.feed_forward.w_1", INNER, WIDTH, options["add_ffnbias"])
            made.add_linear(f"{place}.feed_forward.w_2", WIDTH, INNER, options["add_ffnbias"])
            made.add_norm(f"{place}.feed_forward.layer_norm", WIDTH)
            for end in ["_1", "_2"] if stack == "decoder" else [""]:
                made.add_norm(f"{place}.layer_norm{end}", WIDTH)
        made.add_norm(f"{stack}.layer_norm", WIDTH)
    made.add_linear("generator", len(TARGET), WIDTH)
    return made.values


def save(
    directory: Path, options: dict[str, Any], weights: dict[str, torch.Tensor], **more: Any
) -> Path:
    """Save a checkpoint like OpenNMT-py 3's ModelSaver."""
    path = directory / "model_step_3.pt"
    generator = {name[10:]: t for name, t in weights.items() if name.startswith("generator.")}
    model = {name: t for name, t in weights.items() if not name.startswith("generator.")}
    state = {
        "model": model, "generator": generator, "vocab": VOCABULARIES,
        "opt": argparse.Namespace(**options), "optim": {"training_step": 3},
    }  # fmt: skip
    torch.save(state | more, path)
    return path


def expected_logits(
    options: dict[str, Any], weights: dict[str, torch.Tensor], source: list[int], target: list[int]
) -> np.ndarray:
    """Return the logits of each next token, [T, V]; the source has no end token."""
    values = {name: tensor.double().numpy() for name, tensor in weights.items()}
    layers = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
    parts = {"query": "linear_query", "key": "linear_keys", "value": "linear_values",
             "output": "final_linear"}  # fmt: skip
    attentions = {"self": "self_attn", "cross": "context_attn"}

    def linear(name: str) -> tuple[np.ndarray, Any]:
        stack, layer, *rest = name.split(".")
        there = {"inner": "feed_forward.w_1", "outer": "feed_forward.w_2"}.get(rest[0])
        there = there or f"{attentions[rest[0]]}.{parts[rest[1]]}"
        place = f"{layers[stack]}.{layer}.{there}"
        return values[f"{place}.weight"].T, values.get(f"{place}.bias", 0.0)

    def norm(name: str) -> tuple[np.ndarray, np.ndarray]:
        stack, *rest = name.split(".")
        place = f"{stack}.layer_norm"
        if rest:
            end = {"encoder": {"self": ""}, "decoder": {"self": "_1", "cross": "_2"}}[stack]
            there = "feed_forward.layer_norm"
            if rest[1] != "feed":
                there = f"layer_norm{end[rest[1]]}"
            place = f"{layers[stack]}.{rest[0]}.{there}"
        return values[f"{place}.weight"], values[f"{place}.bias"]

    activation = ACTIVATIONS[options["pos_ffn_activation_fn"]]
    model = NumpyTransformer(HEADS, True, activation, options["norm_eps"], linear, norm)

    def embed(stack: str, tokens: list[int]) -> np.ndarray:
        table = values[f"{stack}.embeddings.make_embedding.emb_luts.0.weight"]
        added = positions_of(options["position_encoding_type"], len(tokens))
        return np.sqrt(WIDTH) * table[tokens] + added

    start = [SPECIAL.index("<s>"), *target]
    output = model.decode(
        embed("encoder", source), embed("decoder", start),
        (options["enc_layers"], options["dec_layers"]),
    )  # fmt: skip
    return output @ values["generator.weight"].T + values["generator.bias"]


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": (
        {},
        {"norm": "pre", "activation": "relu", "tied": "none", "sinusoid": "interleaved",
         "first_position": 0, "scale_embedding": True, "source_vocabulary_size": 44,
         "source_end": False, "layer_norm_epsilon": 1e-6, "output_bias": True},
    ),
    "all else": (
        OTHER,
        {"activation": "gelu", "sinusoid": "tensor2tensor", "layer_norm_epsilon": 1e-3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    changes, fields = MODELS[name]
    options = OPTIONS | changes
    weights = random_weights(options)
    imported = import_opennmt_py(save(tmp_path, options, weights))
    config = imported.model.config
    assert {field: getattr(config, field) for field in fields} == fields
    assert_same_logits(
        imported, (SOURCE, TARGET), len(SPECIAL), SPECIAL.index("</s>"),
        lambda *pair: expected_logits(options, weights, *pair),
    )  # fmt: skip


def test_one_vocabulary_by_the_command(tmp_path: Path) -> None:
    """Old names of the generator and of LayerNorm are accepted."""
    weights = random_weights(OPTIONS)
    table = weights["decoder.embeddings.make_embedding.emb_luts.0.weight"]
    weights["encoder.embeddings.make_embedding.emb_luts.0.weight"] = table
    weights["generator.weight"] = table
    new = import_opennmt_py(save(tmp_path, OPTIONS, weights, vocab=VOCABULARIES | {"src": TARGET}))
    old = {}
    for name, tensor in weights.items():
        changed = name.replace("generator.", "generator.0.")
        if "layer_norm" in name:
            changed = changed.replace(".weight", ".a_2").replace(".bias", ".b_2")
        old[changed] = tensor
    path = save(tmp_path, OPTIONS, old, vocab={"src": TARGET, "tgt": TARGET})
    out = tmp_path / "checkpoint"
    done = CliRunner().invoke(main, ["import", "opennmt-py", str(path), "--output", str(out)])
    assert done.exit_code == 0, done.output
    checkpoint = open_checkpoint(out)
    model = checkpoint.load_model()
    assert (model.config.tied, model.config.source_vocabulary_size) == ("all", 0)
    for name, tensor in new.model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, atol=0, rtol=0)
    assert SearchOptions(**checkpoint.search) == SearchOptions(5, 1.0, "length", loop_guard=True)


REFUSED: dict[str, dict[str, Any]] = {
    "pos_ffn_activation_fn is": {"pos_ffn_activation_fn": "silu"},
    "max_relative_positions is": {"max_relative_positions": 20},
    "position_encoding_type is": {"position_encoding_type": "Learned"},
    "differs from the sinusoids": {"position_encoding_type": "SinusoidalConcat"},
    "heads is": {"heads": "4"},
    "deep_norm is": {"deep_norm": True},
    "lack encoder.transformer.0.self_attn.linear_query.bias": {"add_qkvbias": True},
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_settings_are_named(message: str, tmp_path: Path) -> None:
    path = save(tmp_path, OPTIONS | REFUSED[message], random_weights(OPTIONS))
    with pytest.raises(InputError, match=message):
        import_opennmt_py(path)


def test_alignment_heads(tmp_path: Path) -> None:
    weights = random_weights(OPTIONS)
    for lambda_align, expected in ((0.0, None), (0.05, AttentionHeads(0, (0,)))):
        more = {"lambda_align": lambda_align, "alignment_layer": -1, "alignment_heads": 1}
        imported = import_opennmt_py(save(tmp_path, OPTIONS | more, weights))
        assert imported.alignment_heads == expected


def test_broken_checkpoints(tmp_path: Path) -> None:
    weights = random_weights(OPTIONS)
    layers = {n: t for n, t in weights.items() if not n.startswith("generator.")}
    spoiled: dict[str, dict[str, Any]] = {
        "no vocabularies under 'vocab'": {"vocab": None},
        "the vocabularies contain src_feats": {"vocab": VOCABULARIES | {"src_feats": [["a"]]}},
        "tgt under 'vocab' is not a list": {"vocab": VOCABULARIES | {"tgt": 3}},
        "lacks .* the start token '<go>'": {
            "vocab": VOCABULARIES | {"decoder_start_token": "<go>"}
        },
        "decoder_start_token is '<blank>', the padding token": {
            "vocab": VOCABULARIES | {"decoder_start_token": "<blank>"}
        },
        "matrix has 34 rows, but the vocabulary has 33": {
            "vocab": VOCABULARIES | {"tgt": TARGET[:-1]}
        },
        "no settings under 'opt'": {"opt": {}},
        r"pe\.pe differs from the sinusoids": {
            "model": layers | {name: torch.tensor(1.0) for name in layers if name.endswith("pe.pe")}
        },
        "no weights under 'generator'": {"generator": None},
        "x under 'model' is not a tensor": {"model": {"x": 1}},
        r"encoder\.adapter is part of the model": {
            "model": layers | {"encoder.adapter": torch.ones(1)}
        },
    }
    for message, more in spoiled.items():
        with pytest.raises(InputError, match=message):
            import_opennmt_py(save(tmp_path, OPTIONS, weights, **more))
    path = tmp_path / "settings.pt"
    torch.save({"opt": argparse.Namespace(heads=2), "vocab": VOCABULARIES}, path)
    with pytest.raises(InputError, match=r"\.safetensors file"):
        import_opennmt_py(path)
    torch.save([1], path)
    with pytest.raises(InputError, match="contains a list"):
        import_opennmt_py(path)
