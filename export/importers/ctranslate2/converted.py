"""CTranslate2 models of any precision.

Quantized weights are dequantized (`variables.py`). An array that the conversion does not use is an
error, because ignoring part of a model would change its translations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.ctranslate2.model_bin import read_model_file
from translate_trt.export.importers.ctranslate2.model_directory import Settings, read_token_maps
from translate_trt.export.importers.ctranslate2.variables import (
    RELATIVE,
    Variables,
    count_layers,
    source_table,
)
from translate_trt.export.importers.ctranslate2.vocabulary_map import NAME, read_vocabulary_map
from translate_trt.export.importers.imported import (
    Imported,
    ModelPart,
    build_model,
    first_heads,
    read_positions,
    relative_positions,
)
from translate_trt.export.importers.input_files import find_file
from translate_trt.export.importers.languages import (
    detect_languages,
    is_opus_language,
    language_prompt,
    languages_among,
    opus_prompt,
    tag_prompt,
)
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.model_format import ModelFormat, need
from translate_trt.export.importers.prompt_format import Format
from translate_trt.export.importers.tensors import STACKS, StackNames, read_modules
from translate_trt.export.importers.vocabulary import (
    TokenMap,
    hide_tokens,
    make_tokenizers,
)
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import GATED, ModelConfig
from translate_trt.train.shortlist.table import content_hash

# Of CTranslate2, as fields of `SearchOptions`.
_SEARCH = {
    "beam_size": 2, "length_penalty": 1.0, "length_penalty_form": "length", "early_stopping": True,
    "min_length": 2,
}  # fmt: skip
# SentencePiece models in the directory, of the source or of both sides.
_TOKENIZERS = ("source.spm", "sentencepiece.model", "sentencepiece.bpe.model", "spiece.model")
# The padding token of OpenNMT, and of no other toolkit. OpenNMT's sources have no end token unless
# add_source_eos is set.
_OPENNMT = "<blank>"
# Attention heads per specification; files before revision 3 do not store the number.
_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
# Enumerators of include/ctranslate2/ops/activation.h.
_ACTIVATIONS = {0: "relu", 2: "swish", 3: "gelu"}
_GELU_TANH = 1
_UNSUPPORTED_ACTIVATIONS = {_GELU_TANH: "GELUTanh", 4: "GELUSigmoid", 5: "Tanh", 6: "Sigmoid"}
# Of the third matrix of gated feed-forward layers.
_GATE = "ffn/linear_0_noact"
_BIAS = "decoder/projection/bias"

_ENCODER = {
    "self_attention_norm.norm": "self_attention/layer_norm",
    "self_attention.query+key+value": "self_attention/linear_0",
    "self_attention.output": "self_attention/linear_1",
    "feed_forward.inner": "ffn/linear_0",
    "feed_forward.outer": "ffn/linear_1",
    "feed_forward_norm.norm": "ffn/layer_norm",
}
_DECODER = {
    **_ENCODER,
    "cross_attention_norm.norm": "attention/layer_norm",
    "cross_attention.query": "attention/linear_0",
    "cross_attention.key+value": "attention/linear_1",
    "cross_attention.output": "attention/linear_2",
}
_NAMES = {
    stack: StackNames(
        f"{stack}/layer_{{}}/", modules, f"{stack}/layer_norm", f"{stack}/layernorm_embedding"
    )
    for stack, modules in zip(STACKS, (_ENCODER, _DECODER), strict=True)
}


def import_ctranslate2(
    directory: Path,
    source_model: Path | None = None,
    target_model: Path | None = None,
    source_format: str | None = None,
    target_prefix: str | None = None,
    fallback_format: str | None = None,
) -> Imported:
    """Import a directory that a converter of CTranslate2 wrote.

    Args:
        directory: Directory with model.bin and the vocabularies.
        source_model: SentencePiece model of the source. Default: the model in `directory`; without
            a model, tokens are words.
        target_model: SentencePiece model of the target. Default: target.spm in `directory`, or the
            source's model.
        source_format: Tokens around a source text, such as "<s> {text} </s>". Default: taken from
            the model's files, or from a known model family.
        target_prefix: Tokens that translations begin with, such as "{target_language}". Default:
            as for `source_format`.
        fallback_format: `source_format` with a `target_prefix`, where no file tells it.

    Raises:
        InputError: A file is missing or damaged, the model is not supported, or it needs a
            `source_format`.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory; pass the directory of model.bin.")
    variables = Variables(directory / "model.bin", read_model_file(directory / "model.bin"))
    settings = Settings.read(directory, variables)
    token_maps = read_token_maps(directory, settings)
    source_model = source_model or find_file(directory, _TOKENIZERS)
    target_model = target_model or find_file(directory, ("target.spm",)) or source_model
    spec = _prompt_spec(
        directory, variables, settings, token_maps, source_format, target_prefix, fallback_format
    )
    token_maps, tokenizers = make_tokenizers(
        (source_model, target_model), token_maps, is_opus_language,
        is_hidden=lambda token: spec.languages,
    )  # fmt: skip
    config, weights = _convert(variables, settings, token_maps, spec.source_end)
    variables.check_all_used()
    model = build_model(config, weights, directory)
    prompt_of = tag_prompt if variables.relative() else opus_prompt
    prompt = spec.prompt or prompt_of(token_maps[0].names, tokenizers[0])
    tokenizers = tokenizers[0], hide_tokens(tokenizers[1], prompt.target)
    shortlist = read_vocabulary_map(directory / NAME, token_maps, content_hash(*tokenizers))
    heads = first_heads(directory, config, *variables.alignment())
    return Imported(
        model, tokenizers, "ctranslate2", _SEARCH, prompt, shortlist, alignment_heads=heads
    )


@dataclass(frozen=True)
class _PromptSpec:
    """Tokens around source and target texts.

    Attributes:
        source_end: See `ModelConfig`.
        languages: Whether the prompt contains language tokens.
        prompt: The prompt in our token ids; None for the languages of OPUS-MT or MADLAD-400 in the
            vocabulary.
    """

    source_end: bool
    languages: bool = False
    prompt: Prompt | None = None


def _prompt_spec(
    directory: Path,
    variables: Variables,
    settings: Settings,
    token_maps: tuple[TokenMap, TokenMap],
    source_format: str | None,
    target_prefix: str | None,
    fallback_format: str | None,
) -> _PromptSpec:
    """Determine the prompt from the caller's formats, the model's files or a known model family."""
    # The end token is certain if config.json names it, or if the model is Marian's.
    known_end = settings.source_end or variables.zero_start()
    default = fallback_format
    if known_end:
        default = "{text} " + settings.end
    elif _OPENNMT in token_maps[0].names:
        default = "{text}"
    if source_format is not None or target_prefix is not None:
        source_format = source_format or default
        return _parse_formats(directory, settings, token_maps, source_format, target_prefix or "")
    if variables.relative():
        return _PromptSpec(True, True)
    # SMaLL-100 shares M2M100's vocabulary but not its prompt. Its encoder has more layers than its
    # decoder, unlike every published model of the known families.
    shared = token_maps[0] is token_maps[1]
    family = detect_languages(token_maps[1].names) if shared else {}
    if family and count_layers(variables, "encoder") == count_layers(variables, "decoder"):
        return _PromptSpec(True, True, language_prompt(family))
    if family or default is None:
        raise _unknown_format(directory)
    return _PromptSpec(known_end)


def _parse_formats(
    directory: Path,
    settings: Settings,
    token_maps: tuple[TokenMap, TokenMap],
    source_format: str | None,
    target_prefix: str,
) -> _PromptSpec:
    """Convert the caller's formats to a prompt."""
    if source_format is None:
        raise _unknown_format(directory)
    parsed = Format.parse(source_format, target_prefix, settings.end)
    if settings.source_end and not parsed.source_end:
        raise InputError(
            f"--source-format {source_format!r} does not end with {settings.end}, but "
            f"{directory / 'config.json'} sets add_source_eos."
        )
    source, target = (token_map.names for token_map in token_maps)
    prompt = parsed.prompt((source, target), (languages_among(source), languages_among(target)))
    return _PromptSpec(parsed.source_end, parsed.has_languages, prompt)


def _unknown_format(directory: Path) -> InputError:
    return InputError(
        f"{directory}: add_source_eos is false: callers of CTranslate2 add the tokens around a "
        "text, and no file of the model names them. Name them with --source-format: "
        "'{text} </s>', '<s> {text} </s>' (BART, BARThez), '{source_language} {text} </s>' with "
        "--target-prefix '{target_language}' (M2M100, NLLB, mBART-50), "
        "'{target_language} {text} </s>' (SMaLL-100), or '{text}' for no tokens (docs/import.md)."
    )


# ---- configuration and weights ----


def _convert(
    variables: Variables,
    settings: Settings,
    token_maps: tuple[TokenMap, TokenMap],
    source_end: bool,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`."""
    matrices = Matrices(
        source=variables.weight(source_table(variables)),
        target=variables.weight("decoder/embeddings/weight"),
        output=variables.weight("decoder/projection/weight"),
        bias=variables.weight(_BIAS, axes=1) if _BIAS in variables else None,
    )
    matrices.check(variables.path, *token_maps)
    embeddings = matrices.remap(*token_maps)
    relative = variables.relative()
    positions = _relative_positions(variables) if relative else _positions(variables)
    heads = _HEADS.get(variables.file.specification, 8)
    if variables.file.revision >= 3:
        heads = int(variables.setting("num_heads", 8))
    pre_norm = bool(variables.setting("pre_norm", 1))
    rows = len(variables.weight("encoder/layer_0/self_attention/linear_0/weight"))
    size = rows // (3 * heads) if relative else 0
    config = ModelConfig(
        encoder_layers=count_layers(variables, "encoder"),
        decoder_layers=count_layers(variables, "decoder"),
        d_ff=len(variables.weight("encoder/layer_0/ffn/linear_0/weight")),
        heads=heads,
        dropout=0.0,
        norm="pre" if pre_norm else "post",
        rms_norm=relative,
        value_size=size,
        key_size=size,
        layer_norm_epsilon=settings.epsilon,
        activation=_activation(variables),
        scale_embedding=_scales_embeddings(variables, embeddings.fields["d_model"]),
        norm_embedding="encoder/layernorm_embedding/gamma" in variables,
        source_end=source_end,
        **embeddings.fields,
        **positions.fields,
    )
    read = partial(_read, variables, heads)
    gate = {"feed_forward.gate": _GATE} if config.activation == GATED else {}
    names = {stack: replace(one, modules={**one.modules, **gate}) for stack, one in _NAMES.items()}
    modules = read_modules(config, names, read)
    if "decoder/scale_outputs" in variables:
        modules["decoder_norm.weight"] *= variables.number("decoder/scale_outputs")
    return config, embeddings.weights | positions.weights | modules


def _relative_positions(variables: Variables) -> ModelPart:
    """Read the biases of attention scores, which all layers of a stack have in common.

    Raises:
        InputError: Layers have biases of their own, as in UMT5.
    """
    tables = []
    for stack in STACKS:
        names = [
            f"{stack}/{RELATIVE.replace('0', str(layer))}"
            for layer in range(count_layers(variables, stack))
        ]
        first, *others = (variables.weight(f"{name}bias") for name in names)
        if not all(torch.equal(first, other) for other in others):
            raise variables.setting_error(
                f"{names[-1]}bias", "differs from that of the first layer"
            )
        most = {int(variables.number(f"{name}max_distance")) for name in names}
        tables.append(first)
    return relative_positions(variables.path, max(most), *tables)


def _activation(variables: Variables) -> str:
    number = int(variables.setting("activation", 0))
    if variables.relative() and f"encoder/layer_0/{_GATE}/weight" in variables:
        if number == _GELU_TANH:
            return GATED
        raise variables.setting_error("activation", f"is {number} in gated layers")
    if number not in _ACTIVATIONS:
        raise variables.setting_error(
            "activation", f"is {_UNSUPPORTED_ACTIVATIONS.get(number, number)}"
        )
    return _ACTIVATIONS[number]


def _scales_embeddings(variables: Variables, width: int) -> bool:
    """Return whether embeddings are multiplied by sqrt(d_model), stored as a flag or a factor."""
    factors = set()
    for stack, table in (("encoder", source_table(variables)),
                         ("decoder", "decoder/embeddings/weight")):  # fmt: skip
        names = f"{stack}/scale_embeddings", table.replace("weight", "multiply_by_sqrt_depth")
        name = next((name for name in names if name in variables), None)
        factor = 1.0 if name is None else variables.number(name)
        if name is None or np.issubdtype(variables.take(name).dtype, np.integer):
            factor = math.sqrt(width) if factor else 1.0
        factors.add(round(factor, 4))
    if factors == {round(math.sqrt(width), 4)}:
        return True
    if factors == {1.0}:
        return False
    raise variables.setting_error("scale_embeddings", f"is {sorted(factors)}")


def _positions(variables: Variables) -> ModelPart:
    """Read both position tables; without tables CTranslate2 computes OpenNMT-tf's sinusoids."""
    names = [f"{stack}/position_encodings/encodings" for stack in STACKS]
    present = [name in variables for name in names]
    if not any(present):
        return ModelPart({"sinusoid": "tensor2tensor", "first_position": 1}, {})
    if not all(present):
        raise variables.setting_error(
            names[present.index(True)], "has no counterpart in the other stack"
        )
    return read_positions(*(variables.weight(name) for name in names))


def _read(variables: Variables, heads: int, name: str, ours: str) -> dict[str, Tensor]:
    """Read a LayerNorm, or a matrix whose rows are those of several of ours; no bias is zero.

    Args:
        variables: Arrays of the model.
        heads: Number of heads.
        name: CTranslate2's name of the module.
        ours: Our name; the last parts of several are joined with +.

    Raises:
        InputError: An array is missing or damaged.
    """
    if ours.endswith("norm"):
        if f"{name}/beta" not in variables and variables.relative():
            return {f"{ours}.weight": variables.weight(f"{name}/gamma", axes=1)}
        parts = (("weight", "gamma"), ("bias", "beta"))
        return {f"{ours}.{part}": variables.weight(f"{name}/{x}", axes=1) for part, x in parts}
    weight = variables.weight(f"{name}/weight")
    bias = torch.zeros(len(weight))
    if f"{name}/bias" in variables:
        bias = variables.weight(f"{name}/bias", axes=1)
    module, _, last = ours.rpartition(".")
    names = [f"{module}.{part}" for part in last.split("+")]
    found: dict[str, Tensor] = {}
    for kind, tensor in (("weight", weight), ("bias", bias)):
        if len(tensor) % len(names):
            raise InputError(
                f"{variables.path} is damaged: {name}/{kind} has {len(tensor)} rows, which are "
                f"not those of {len(names)} projections."
            )
        rows = tensor.chunk(len(names))
        found |= {f"{ours}.{kind}": part for ours, part in zip(names, rows, strict=True)}
    scale = f"{name.rpartition('/')[0]}/queries_scale"
    if "query" in last and scale in variables:
        # `Transformer` scales queries by 1 / sqrt(D).
        query = f"{module}.query"
        factor = variables.number(scale) * math.sqrt(len(found[f"{query}.weight"]) / heads)
        for kind in ("weight", "bias"):
            found[f"{query}.{kind}"] = found[f"{query}.{kind}"] * factor
    return found


#: Recognized by the names of its vocabularies, which no other toolkit uses.
FORMAT = ModelFormat(
    "ctranslate2",
    "a model of CTranslate2",
    (
        need("model.bin"),
        need(
            "shared_vocabulary.json",
            "shared_vocabulary.txt",
            "source_vocabulary.json target_vocabulary.json",
            "source_vocabulary.txt target_vocabulary.txt",
        ),
    ),
    ("config.json", *_TOKENIZERS, "target.spm", NAME),
    load=lambda directory, languages: import_ctranslate2(directory),
)
