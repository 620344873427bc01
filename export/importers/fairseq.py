"""Importer of fairseq's `transformer` checkpoints.

Settings are under "args" or "cfg". Tensors are named as in fairseq/models/transformer; old names
are upgraded as in fairseq's `upgrade_state_dict_named`. Vocabularies are the dict.*.txt files of
fairseq-preprocess.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.export.importers.hugging_face.bart_family import NAMES
from translate_trt.export.importers.imported import (
    Imported,
    ModelPart,
    build_model,
    first_heads,
    read_positions,
)
from translate_trt.export.importers.input_files import read_lines
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.model_format import (
    Languages,
    ModelFormat,
    checkpoint_in,
    need,
    tokenizers_in,
)
from translate_trt.export.importers.settings_table import OFF, Config, SettingsTable, is_one_of
from translate_trt.export.importers.tensors import STACKS, Tensors, read_modules
from translate_trt.export.importers.torch_file import read_torch_file, settings_of, tensors_of
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

# fairseq/data/dictionary.py puts these before the tokens of a file.
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
_PAD, _END, _UNKNOWN = 1, 2, 3
# Of fairseq-generate, as fields of `SearchOptions`.
_SEARCH = {
    "beam_size": 5, "length_penalty": 1.0, "length_penalty_form": "length", "early_stopping": True,
    "min_length": 2,
}  # fmt: skip
# Decoding starts with the end token.
_IDS = SpecialTokens(pad=_PAD, unknown=_UNKNOWN, start=_END, end=_END)
# Architectures of fairseq 0.12 that differ in sizes (transformer_legacy.py) or add only a loss
# (transformer_align.py). Others, such as transformer_unidirectional, have different layers.
_ARCHS = (
    "transformer", "transformer_tiny", "transformer_iwslt_de_en", "transformer_wmt_en_de",
    "transformer_vaswani_wmt_en_de_big", "transformer_vaswani_wmt_en_fr_big",
    "transformer_wmt_en_de_big", "transformer_wmt_en_de_big_t2t", "transformer_align",
    "transformer_wmt_en_de_big_align",
)  # fmt: skip
# Settings that select unsupported models or layers.
_OFF = (
    "adaptive_input", "adaptive_softmax_cutoff", "base_layers", "char_inputs",
    "cross_self_attention", "decoder_layers_to_keep", "decoder_xformers_att_config",
    "encoder_layers_to_keep", "encoder_xformers_att_config", "no_cross_attention",
    "no_decoder_final_norm", "no_token_positional_embeddings", "scale_attn", "scale_fc",
    "scale_heads", "scale_resids",
)  # fmt: skip
# Settings that the importer reads, that the weights imply, or that matter only in training.
_SETTINGS = """
    activation_dropout adaptive_softmax_dropout adaptive_softmax_factor
    alignment_heads alignment_layer arch attention_dropout base_shuffle base_sublayers
    checkpoint_activations decoder_attention_heads decoder_embed_dim decoder_embed_path
    decoder_ffn_embed_dim decoder_input_dim decoder_layerdrop decoder_layers decoder_learned_pos
    decoder_normalize_before decoder_output_dim dropout encoder_attention_heads encoder_embed_dim
    encoder_embed_path encoder_ffn_embed_dim encoder_layerdrop encoder_layers encoder_learned_pos
    encoder_normalize_before export full_context_alignment layernorm_embedding
    max_source_positions max_target_positions min_params_to_wrap no_scale_embedding
    offload_activations quant_noise quant_noise_pq quant_noise_pq_block_size quant_noise_scalar
    relu_dropout share_all_embeddings share_decoder_input_output_embed tie_adaptive_proj
    tie_adaptive_weights
"""
_ONLY = dict.fromkeys(_OFF, OFF) | {
    "task": ("translation",), "activation_fn": ("relu", "gelu")
}  # fmt: skip
# Before hydra, settings of model and training were in one namespace. There the name of an unknown
# setting decides whether it belongs to the layers.
_TRAINING = ("optimizer", "criterion", "lr_scheduler")
_OF_LAYERS = re.compile(
    r"(^|_)(encoder|decoder|attn|attention|ffn|head|heads|layer|layers|pos|positions?|positional|"
    r"embed|embedding|embeddings|activation|norm|residual|relative|rotary|alibi|gate|gated|expert|"
    r"experts|moe)(_|$)"
)
# Settings of optimizer, data and logging whose names match that pattern.
_NOT_OF_LAYERS = """
    clip_norm clip_norm_type pipeline_decoder_balance pipeline_decoder_devices
    pipeline_encoder_balance pipeline_encoder_devices
"""
# First version of the layers in which a pre-norm stack ends with LayerNorm.
_FINAL_NORM = 3
_OLD_NORM = re.compile(r"((?:en|de)coder)\.layers\.(\d+)\.layer_norms\.(\d)\.(weight|bias)")
_OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_OLD_PROJECTION = re.compile(r"(.*_attn)\.in_proj_(weight|bias)")
# Copies for a fused kernel, which fairseq 0.12 recreates when it loads a checkpoint.
_COPY = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")
# Computed, not learned.
_IGNORED = {
    f"{stack}.{name}"
    for stack in STACKS
    for name in ("version", "embed_positions.weights", "embed_positions._float_tensor")
}


def import_fairseq(
    path: Path,
    dictionary: Path,
    target_dictionary: Path | None = None,
    tokenizers: tuple[Path | None, Path | None] = (None, None),
) -> Imported:
    """Import a checkpoint that fairseq-train wrote.

    Args:
        path: Path of the checkpoint.
        dictionary: dict.*.txt of the source.
        target_dictionary: dict.*.txt of the target. Default: the source's.
        tokenizers: SentencePiece models of source and target. The target's defaults to the
            source's; without either, tokens are words.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    checkpoint = read_torch_file(path, ["argparse.Namespace"], "fairseq")
    config = _settings(path, checkpoint)
    tensors = Tensors(path, _upgraded(path, tensors_of(path, checkpoint.get("model"), "model")))
    source = target = _read_dictionary(dictionary)
    if target_dictionary is not None:
        own = _read_dictionary(target_dictionary)
        target = source if own.names == source.names else own
    matrices = _matrices(config, tensors)
    matrices.check(path, source, target)
    (source, target), models = make_tokenizers(tokenizers, (source, target))
    model, weights = _convert(config, tensors, matrices.remap(source, target))
    tensors.check_all_used(_IGNORED)
    made = build_model(model, weights, path)
    heads = None
    if config.values.get("alignment_layer") is not None:  # of transformer_align
        heads = first_heads(
            path, model, config.integer("alignment_layer"), config.values.get("alignment_heads")
        )
    return Imported(made, models, "fairseq", _SEARCH, alignment_heads=heads)


def _settings(path: Path, checkpoint: dict[str, Any]) -> Config:
    """Flatten and check the model's settings of any fairseq version, with the task's name."""
    options, task = checkpoint.get("args"), None
    if options is None:
        parts = settings_of(path, checkpoint.get("cfg"))
        options, task = parts.get("model"), settings_of(path, parts.get("task")).get("_name")
    fields = settings_of(path, options)
    if not fields:
        raise InputError(
            f"{path} has no model settings under 'args' or 'cfg'; pass a checkpoint that "
            "fairseq-train wrote."
        )
    values = {"task": task or "translation", "arch": fields.get("_name")} | fields
    for stack in STACKS:
        nested = settings_of(path, values.pop(stack, None))
        values |= {f"{stack}_{name}": value for name, value in nested.items()}
    config = Config(path, values)
    if not is_one_of(values["arch"], _ARCHS):
        raise config.setting_error(
            "arch",
            f"supported: {', '.join(_ARCHS)}. If your own architecture only sets sizes, change "
            "arch in the checkpoint to 'transformer'",
        )
    config.check(SettingsTable({*_SETTINGS.split(), *_not_of_layers(config)}, _ONLY))
    return config


def _not_of_layers(config: Config) -> list[str]:
    """Return the settings whose names say that they do not belong to the layers."""
    mixed = any(name in config.values for name in _TRAINING)
    not_of_layers = _NOT_OF_LAYERS.split()
    return [
        name
        for name in config.values
        if name.startswith("_")
        or (mixed and (name in not_of_layers or not _OF_LAYERS.search(name)))
    ]


def _read_dictionary(path: Path) -> TokenMap:
    """Read a dictionary: a token and its count per line."""
    tokens = list(_SPECIAL)
    lines = read_lines(path, "pass the dict.*.txt of fairseq-preprocess")
    for number, line in enumerate(lines, 1):
        token, separator, count = line.rstrip().rpartition(" ")
        if not separator or not re.fullmatch(r"-?\d+", count):
            raise InputError(
                f"{path}, line {number}: {line.strip()[:60]!r} is not a token and a count; pass "
                "the dict.*.txt of fairseq-preprocess (#fairseq:overwrite is not supported)."
            )
        tokens.append(token)
    # fairseq-generate never selects padding.
    return TokenMap(tokens, _IDS, banned=[_PAD])


def _upgraded(path: Path, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of older versions as in fairseq 0.12.

    Raises:
        InputError: A tensor does not have the rows of three projections.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in values.items():
        norm, projection = _OLD_NORM.fullmatch(name), _OLD_PROJECTION.fullmatch(name)
        if norm is not None and int(norm[3]) < len(_OLD_NORMS[norm[1]]):
            part = _OLD_NORMS[norm[1]][int(norm[3])]
            found[f"{norm[1]}.layers.{norm[2]}.{part}.{norm[4]}"] = tensor
        elif projection is not None:
            if tensor.dim() == 0 or len(tensor) % 3:
                raise InputError(
                    f"{path}: {name} has shape {list(tensor.shape)}; rows of queries, keys and "
                    "values are required. The file is damaged."
                )
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                found[f"{projection[1]}.{part}_proj.{projection[2]}"] = rows
        elif not _COPY.fullmatch(name):
            found[name] = tensor
    return found


def _check_quantized_embeddings(tensors: Tensors) -> None:
    """Refuse the embedding projection of quant_noise_pq, unless it is an alias of a matrix."""
    known = ("embed_tokens.weight", "output_projection.weight")
    for stack in STACKS:
        name = f"{stack}.quant_noise.weight"
        if name not in tensors:
            continue
        matrix = tensors.table(name)
        others = [tensors.values[n] for n in (f"{stack}.{k}" for k in known) if n in tensors]
        if matrix.shape[0] == matrix.shape[-1] or not any(torch.equal(matrix, x) for x in others):
            raise InputError(
                f"{tensors.path}: {name} is the embedding projection of quant_noise_pq, which "
                "translate-trt does not support."
            )


def _matrices(config: Config, tensors: Tensors) -> Matrices:
    _check_quantized_embeddings(tensors)
    target = tensors.take("decoder.embed_tokens.weight")
    names = ["decoder.output_projection.weight", "decoder.embed_out"]
    ties = ("share_decoder_input_output_embed", "share_all_embeddings")
    if any(config.flag(name) for name in ties):
        names.append("decoder.embed_tokens.weight")
    source = tensors.take("encoder.embed_tokens.weight")
    return Matrices(source, target, tensors.take(*names), None)


def _convert(
    config: Config, tensors: Tensors, embeddings: ModelPart
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`."""
    _check_stacks(config, embeddings.fields["d_model"])
    pre_norm = config.flag("encoder_normalize_before")
    # The first position follows the id of the padding token.
    first = _PAD + 1
    positions = ModelPart({"sinusoid": "tensor2tensor", "first_position": first}, {})
    if config.flag("encoder_learned_pos"):
        names = (f"{stack}.embed_positions.weight" for stack in STACKS)
        positions = read_positions(*(tensors.table(name)[first:] for name in names))
    model = ModelConfig(
        encoder_layers=config.integer("encoder_layers"),
        decoder_layers=config.integer("decoder_layers"),
        d_ff=config.integer("encoder_ffn_embed_dim"),
        heads=config.integer("encoder_attention_heads"),
        dropout=0.0,
        norm="pre" if pre_norm else "post",
        activation=config.values.get("activation_fn", "relu"),
        scale_embedding=not config.flag("no_scale_embedding"),
        norm_embedding=config.flag("layernorm_embedding"),
        **positions.fields,
        **embeddings.fields,
    )
    if pre_norm:
        for stack in STACKS:
            _check_version(tensors, stack)
    weights = embeddings.weights | positions.weights | read_modules(model, NAMES, tensors.renamed)
    return model, weights


def _check_stacks(config: Config, d_model: int) -> None:
    """Refuse stacks of different shapes, and additional projections."""
    for part in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        config.check_equal(f"encoder_{part}", f"decoder_{part}", config.integer)
    for part in ("normalize_before", "learned_pos"):
        config.check_equal(f"encoder_{part}", f"decoder_{part}", config.flag)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        config.choice(name, (d_model, "${model.decoder.embed_dim}"), default=d_model)


def _check_version(tensors: Tensors, stack: str) -> None:
    name = f"{stack}.version"
    version = tensors.take(name) if name in tensors else torch.ones(1)
    if version.numel() != 1:
        raise InputError(
            f"{tensors.path}: {name} has shape {list(version.shape)}; a number is required."
        )
    if float(version) < _FINAL_NORM:
        raise InputError(
            f"{tensors.path}: {name} is {float(version):g}: a pre-norm stack without a final "
            "LayerNorm, which translate-trt does not support."
        )


# Checkpoints of fairseq-train, the best one first.
_CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt", "*.pt")


def _load_directory(directory: Path, languages: Languages) -> Imported:
    """Import a directory with a checkpoint and its dictionaries."""
    path = checkpoint_in(directory, "fairseq", *_CHECKPOINTS)
    tokenizers = tokenizers_in(directory, "fairseq")
    found = sorted(directory.glob("dict.*.txt"))
    if len(found) == 1:
        return import_fairseq(path, found[0], None, tokenizers)
    dictionaries = [directory / f"dict.{code}.txt" for code in languages]
    if not all(file.is_file() for file in dictionaries):
        names = ", ".join(file.name for file in found)
        raise InputError(
            f"{directory} has several dictionaries: {names}. Name the languages of source and "
            "target, as in these names, with --languages."
        )
    return import_fairseq(path, dictionaries[0], dictionaries[1], tokenizers)


#: Recognized by its dictionaries.
FORMAT = ModelFormat(
    "fairseq",
    "a model of fairseq",
    (need("*.pt"), need("dict.*.txt")),
    ("*.spm", "*.model"),
    load=_load_directory,
)
