"""Checkpoints in fairseq's layout, compared with numpy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from click.testing import CliRunner
from support.hugging_face_models import pieces_of, train_pieces
from support.importing import assert_same_logits, tokenizer_of
from support.numpy_transformer import (
    ACTIVATIONS,
    NumpyTransformer,
    RandomWeights,
    tensor2tensor_sinusoids,
)

from translate_trt.export.importers.fairseq import import_fairseq
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import open_checkpoint

WIDTH, INNER, HEADS, POSITIONS = 32, 48, 4, 40
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SOURCE, TARGET = (
    [*SPECIAL, *(f"{letter}{n}" for n in range(count))] for letter, count in (("s", 40), ("t", 30))
)
OPTIONS: dict[str, Any] = {
    "arch": "transformer", "activation_fn": "relu",
    **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in (
        ("embed_dim", WIDTH), ("ffn_embed_dim", INNER), ("attention_heads", HEADS),
        ("normalize_before", False), ("learned_pos", False))},
    "encoder_layers": 2, "decoder_layers": 1, "max_source_positions": POSITIONS,
    "max_target_positions": POSITIONS, "share_all_embeddings": False,
    "share_decoder_input_output_embed": False, "no_scale_embedding": False,
    "layernorm_embedding": False, "adaptive_softmax_cutoff": None,
}  # fmt: skip
OTHER: dict[str, Any] = {
    "arch": "transformer_wmt_en_de", "activation_fn": "gelu", "encoder_normalize_before": True,
    "decoder_normalize_before": True, "encoder_learned_pos": True, "decoder_learned_pos": True,
    "share_decoder_input_output_embed": True, "no_scale_embedding": True,
    "layernorm_embedding": True,
}  # fmt: skip


def random_weights(options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return random weights, named as in fairseq/models/transformer 0.12."""
    made = RandomWeights()
    for stack, tokens in (("encoder", SOURCE), ("decoder", TARGET)):
        made.values[f"{stack}.version"] = torch.tensor([3.0])
        made.add(f"{stack}.embed_tokens.weight", len(tokens), WIDTH)
        if options[f"{stack}_learned_pos"]:
            made.add(f"{stack}.embed_positions.weight", POSITIONS + 2, WIDTH)
        else:
            made.values[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        for layer in range(options[f"{stack}_layers"]):
            place = f"{stack}.layers.{layer}"
            for part in ["self_attn", "encoder_attn"][: 1 + (stack == "decoder")]:
                for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    made.add_linear(f"{place}.{part}.{name}", WIDTH, WIDTH)
                made.add_norm(f"{place}.{part}_layer_norm", WIDTH)
            made.add_linear(f"{place}.fc1", INNER, WIDTH)
            made.add_linear(f"{place}.fc2", WIDTH, INNER)
            made.add_norm(f"{place}.final_layer_norm", WIDTH)
            if stack == "encoder":
                # Which fairseq 0.12 saves besides, and never reads.
                made.add(f"{place}.in_proj_weight", 3 * WIDTH, WIDTH)
                made.add(f"{place}.fc1_bias", INNER)
        if options[f"{stack}_normalize_before"]:
            made.add_norm(f"{stack}.layer_norm", WIDTH)
        if options["layernorm_embedding"]:
            made.add_norm(f"{stack}.layernorm_embedding", WIDTH)
    output = "decoder.output_projection.weight"
    if options["share_decoder_input_output_embed"]:
        made.values[output] = made.values["decoder.embed_tokens.weight"]
    else:
        made.add(output, len(TARGET), WIDTH)
    return made.values


def save(
    directory: Path, options: dict[str, Any], weights: dict[str, torch.Tensor], **more: Any
) -> tuple[Path, Path, Path]:
    """Save a checkpoint like fairseq's trainer, and dictionaries like fairseq-preprocess."""
    path = directory / "checkpoint_best.pt"
    state = {
        "args": None,
        "cfg": {"model": argparse.Namespace(**options), "task": {"_name": "translation"}},
        "model": weights,
        "optimizer_history": [{"num_updates": 3}],
        "extra_state": {"val_loss": np.float64(5.4), "epoch": 1},
    }
    torch.save(state | more, path)
    dictionaries = []
    for side, words in (("en", SOURCE), ("de", TARGET)):
        file = directory / f"dict.{side}.txt"
        file.write_text("".join(f"{word} {100 - n}\n" for n, word in enumerate(words[4:])))
        dictionaries.append(file)
    return path, dictionaries[0], dictionaries[1]


def expected_logits(
    options: dict[str, Any], weights: dict[str, torch.Tensor], source: list[int], target: list[int]
) -> np.ndarray:
    """Return the logits of each next token, [T, V]; decoding starts with </s>."""
    values = {name: tensor.double().numpy() for name, tensor in weights.items()}
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    attentions = {"self": "self_attn", "cross": "encoder_attn"}

    def linear(name: str) -> tuple[np.ndarray, np.ndarray]:
        stack, layer, *rest = name.split(".")
        there = {"inner": "fc1", "outer": "fc2"}.get(rest[0])
        there = there or f"{attentions[rest[0]]}.{parts[rest[1]]}"
        place = f"{stack}.layers.{layer}.{there}"
        return values[f"{place}.weight"].T, values[f"{place}.bias"]

    def norm(name: str) -> tuple[np.ndarray, np.ndarray]:
        stack, *rest = name.split(".")
        place = f"{stack}.layer_norm"
        if rest == ["embedding"]:
            place = f"{stack}.layernorm_embedding"
        elif rest:
            there = {"feed": "final"}.get(rest[1]) or attentions[rest[1]]
            place = f"{stack}.layers.{rest[0]}.{there}_layer_norm"
        return values[f"{place}.weight"], values[f"{place}.bias"]

    model = NumpyTransformer(
        HEADS, options["encoder_normalize_before"], ACTIVATIONS[options["activation_fn"]], 1e-5,
        linear, norm,
    )  # fmt: skip

    def embed(stack: str, tokens: list[int]) -> np.ndarray:
        scale = 1.0 if options["no_scale_embedding"] else np.sqrt(WIDTH)
        table = values.get(f"{stack}.embed_positions.weight")
        places = np.arange(2, 2 + len(tokens))  # from padding_idx + 1 on
        added = tensor2tensor_sinusoids(places, WIDTH) if table is None else table[places]
        x = scale * values[f"{stack}.embed_tokens.weight"][tokens] + added
        return model.layer_norm(f"{stack}.embedding", x) if options["layernorm_embedding"] else x

    layers = options["encoder_layers"], options["decoder_layers"]
    end = SPECIAL.index("</s>")
    output = model.decode(
        embed("encoder", [*source, end]), embed("decoder", [end, *target]), layers
    )
    return output @ values["decoder.output_projection.weight"].T


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as in the paper": (
        {},
        {"norm": "post", "activation": "relu", "tied": "none", "sinusoid": "tensor2tensor",
         "first_position": 2, "scale_embedding": True, "source_vocabulary_size": 45},
    ),
    "all else": (
        OTHER,
        {"norm": "pre", "activation": "gelu", "tied": "output", "positions": "learned",
         "max_positions": POSITIONS, "own_target_positions": True, "norm_embedding": True,
         "scale_embedding": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    changes, fields = MODELS[name]
    options = OPTIONS | changes
    weights = random_weights(options)
    imported = import_fairseq(*save(tmp_path, options, weights))
    config = imported.model.config
    assert {field: getattr(config, field) for field in fields} == fields
    assert_same_logits(
        imported, (SOURCE, TARGET), len(SPECIAL), SPECIAL.index("</s>"),
        lambda *pair: expected_logits(options, weights, *pair),
    )  # fmt: skip


def test_checkpoints_of_older_versions(tmp_path: Path) -> None:
    """Fused projections, numbered LayerNorms, "args", and torch's format before zip files."""
    weights = random_weights(OPTIONS)
    new = import_fairseq(*save(tmp_path, OPTIONS, weights))
    old = {name: tensor for name, tensor in weights.items() if "_proj." not in name}
    for name, tensor in weights.items():
        if name.endswith(("out_proj.weight", "out_proj.bias")):
            old[name] = tensor
        elif ".q_proj." in name:
            parts = [
                weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")
            ]
            old[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    old["decoder.embed_out"] = weights["decoder.output_projection.weight"]
    numbers = {"decoder": ("self_attn", "encoder_attn", "final"), "encoder": ("self_attn", "final")}
    for stack, names in numbers.items():
        for place, part in enumerate(names):
            for name in [n for n in old if n.startswith(stack) and f".{part}_layer_norm." in n]:
                old[name.replace(f"{part}_layer_norm", f"layer_norms.{place}")] = old.pop(name)
    path, *dictionaries = save(tmp_path, OPTIONS, {})
    state = {"args": argparse.Namespace(**OPTIONS, task="translation"), "model": old}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    found = import_fairseq(path, *dictionaries).model.state_dict()
    for name, tensor in new.model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=0, rtol=0)


def test_one_dictionary_by_the_command(tmp_path: Path) -> None:
    options = OPTIONS | {"share_all_embeddings": True}
    weights = random_weights(options)
    weights["decoder.embed_tokens.weight"] = weights["encoder.embed_tokens.weight"]
    weights["decoder.output_projection.weight"] = weights["encoder.embed_tokens.weight"]
    # Hydra stores the settings of a stack in a nested dictionary.
    nested = {k: v for k, v in options.items() if not k.startswith(("encoder_", "decoder_"))}
    for stack in ("encoder", "decoder"):
        begin = f"{stack}_"
        nested[stack] = {k.removeprefix(begin): v for k, v in options.items() if begin in k[:8]}
    nested["_name"] = nested.pop("arch")
    path, dictionary, _ = save(tmp_path, {}, weights, cfg={"model": nested})
    out = tmp_path / "checkpoint"
    arguments = ["import", "fairseq", str(path), "--dict", str(dictionary), "--output", str(out)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{out}: 2 + 1 layers, ")
    checkpoint = open_checkpoint(out)
    config = checkpoint.load_model().config
    assert (config.tied, config.source_vocabulary_size) == ("all", 0)
    assert SearchOptions(**checkpoint.search) == SearchOptions(
        5, 1.0, "length", early_stopping=True, min_length=2, loop_guard=True
    )


REFUSED: dict[str, dict[str, Any]] = {
    "activation_fn": {"activation_fn": "gelu_accurate"},
    "decoder_normalize_before": {"decoder_normalize_before": True},
    "decoder_output_dim": {"decoder_output_dim": 16},
    "encoder_layers": {"encoder_layers": None},
    "arch": {"arch": "transformer_unidirectional"},
    "deepnet": {"deepnet": True},
    "encoder_relative_pos": {"encoder_relative_pos": 4, "optimizer": "adam", "adam_eps": 1e-8},
    "task": {"task": "translation_lev"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_named(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, OPTIONS | REFUSED[name], random_weights(OPTIONS))
    with pytest.raises(InputError, match=f"pt: {name} is "):
        import_fairseq(*path)


def test_settings_of_training_and_plugins(tmp_path: Path) -> None:
    """Checkpoints before hydra mix settings; unknown settings that are off are ignored."""
    more = {"optimizer": "adam", "clip_norm": 0.1, "lr": [0.1], "encoder_extra": False, "x": None}
    imported = import_fairseq(*save(tmp_path, OPTIONS | more, random_weights(OPTIONS)))
    assert imported.alignment_heads is None


@pytest.mark.parametrize(
    ("layer", "heads", "expected"),
    [
        (0, 1, AttentionHeads(0, (0,))), (-1, 2, AttentionHeads(0, (0, 1))),
        (0, None, AttentionHeads(0)), (0, 2**62, None), (1, 1, None),
    ],
)  # fmt: skip
def test_alignment_heads(
    layer: int, heads: int | None, expected: AttentionHeads | None, tmp_path: Path
) -> None:
    more = {"alignment_layer": layer, "alignment_heads": heads, "full_context_alignment": False}
    paths = save(tmp_path, OPTIONS | more, random_weights(OPTIONS))
    if expected is not None:
        assert import_fairseq(*paths).alignment_heads == expected
    else:
        with pytest.raises(InputError, match="alignment_layer and alignment_heads"):
            import_fairseq(*paths)


def test_sentencepiece_models(tmp_path: Path) -> None:
    """The model has <s>, with which fairseq's decoding does not start, as a control piece."""
    model = tmp_path / "spm.model"
    lines = ["the cat sat", "he met the man", "hello world"] * 20
    model.write_bytes(train_pieces(lines, "unigram", 30))
    words = [*pieces_of(model.read_bytes()), "madeupword0000"]
    matrix = torch.randn(len(SPECIAL) + len(words), WIDTH)
    weights = random_weights(OPTIONS)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        weights[f"{name}.weight"] = matrix
    path, dictionary, _ = save(tmp_path, OPTIONS, weights)
    dictionary.write_text("".join(f"{word} 1\n" for word in words))
    imported = import_fairseq(path, dictionary, None, (model, None))
    ours = tokenizer_of(imported.tokenizers)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    text = "he met the hello cat"
    assert ours.source_pieces(ours.encode_source(text)) == theirs.encode(text, out_type=str)


def test_quant_noise(tmp_path: Path) -> None:
    """An alias of the output matrix is accepted; an embedding projection is refused."""
    weights = random_weights(OPTIONS)
    name = "decoder.quant_noise.weight"
    again = weights | {name: weights["decoder.output_projection.weight"]}
    import_fairseq(*save(tmp_path, OPTIONS, again))
    for matrix in (torch.eye(WIDTH), weights["decoder.output_projection.weight"] + 1):
        with pytest.raises(InputError, match=f"{name} is the embedding projection"):
            import_fairseq(*save(tmp_path, OPTIONS, weights | {name: matrix}))


def test_broken_dictionaries(tmp_path: Path) -> None:
    path, source, target = save(tmp_path, OPTIONS, random_weights(OPTIONS))
    with pytest.raises(InputError, match=r"source's.*44 rows"):
        import_fairseq(path, target, source)
    for text, message in (
        ("s0 1\ns0 2\n", "token 's0' twice"),
        ("s0 1\ns1\n", "line 2: 's1' is not a token and a count"),
        ("\u2581the 1\n", "pass the SentencePiece model"),
    ):
        spoiled = tmp_path / "dict.txt"
        spoiled.write_text(text + "".join(f"x{n} 1\n" for n in range(40 - len(text.splitlines()))))
        with pytest.raises(InputError, match=message):
            import_fairseq(path, spoiled, target)
    with pytest.raises(InputError, match=r"cannot read .*nothing"):
        import_fairseq(path, tmp_path / "nothing", target)


def test_broken_checkpoints(tmp_path: Path) -> None:
    weights, pre_norm = random_weights(OPTIONS), random_weights(OPTIONS | OTHER)
    settings = {"model": argparse.Namespace(**OPTIONS | OTHER)}
    spoiled: dict[str, dict[str, Any]] = {
        "no weights under 'model'": {"model": {}},
        "no model settings under 'args' or 'cfg'": {"cfg": None},
        "encoder.adapter.weight is part of the model": {
            "model": weights | {"encoder.adapter.weight": torch.ones(1)}
        },
        "encoder.version is 2: a pre-norm stack without": {
            "model": pre_norm | {"encoder.version": torch.tensor([2.0])}, "cfg": settings,
        },
        r"encoder.version has shape \[2\]; a number": {
            "model": pre_norm | {"encoder.version": torch.ones(2)}, "cfg": settings,
        },
        "setting foo_layer is a tensor of shape": {"cfg": {"model": {"foo_layer": torch.ones(2)}}},
        "setting _name is a tensor": {
            "cfg": {"model": argparse.Namespace(**OPTIONS), "task": {"_name": torch.ones(2)}}
        },
        r"in_proj_weight has shape \[2, 32\]; rows of": {
            "model": weights | {"decoder.layers.0.self_attn.in_proj_weight": torch.ones(2, WIDTH)}
        },
    }  # fmt: skip
    for message, more in spoiled.items():
        with pytest.raises(InputError, match=message):
            import_fairseq(*save(tmp_path, OPTIONS, weights, **more))
