"""Importer of Marian's models: model.npz, and binaries of marian-conv.

Decoding starts with a zero embedding, which becomes the start token's row. Positions are those of
tensor2tensor (`sinusoidalPositionEmbeddings` in src/graph/node_initializers.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from translate_trt.export.importers.imported import Imported, ModelPart, build_model
from translate_trt.export.importers.languages import is_opus_language, opus_prompt
from translate_trt.export.importers.marian.binary import read_binary
from translate_trt.export.importers.marian.decoder_settings import DecoderSettings
from translate_trt.export.importers.marian.files import SETTINGS, read_vocabulary
from translate_trt.export.importers.marian.lexical_table import ShortlistFile, import_shortlist
from translate_trt.export.importers.marian.model_settings import (
    alignment_heads,
    decoder_numbers,
    norm_of,
    read_model_settings,
    recurrent,
)
from translate_trt.export.importers.marian.npz import read_npz
from translate_trt.export.importers.marian.recorded_scales import (
    MULTIPLIER,
    SHORTLISTED,
    check_has_recorded_scales,
    read_magnitudes,
)
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.tensors import (
    STACKS,
    StackNames,
    Tensors,
    attention_names,
    read_modules,
)
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.train.activation_scales import PROJECTION
from translate_trt.train.config import ModelConfig
from translate_trt.train.shortlist.table import content_hash

# Names in src/data/types.h, and those of Nematus.
_END, _UNKNOWN = ("</s>", "eos"), ("<unk>", "UNK")
_EPSILON = 1e-6  # layerNorm in src/layers/generic.h
# Names of the output matrix: its own, and those of an embedding to which it is tied.
_OUTPUTS = ("decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt", "decoder_Wemb", "Wemb")


def import_marian_model(
    path: Path,
    vocabulary: Path,
    target_vocabulary: Path | None = None,
    tokenizers: tuple[Path | None, Path | None] = (None, None),
    shortlist: ShortlistFile | None = None,
    decoder: DecoderSettings | None = None,
    recorded_scales: bool = False,
) -> Imported:
    """Import a model that marian or marian-conv wrote.

    Args:
        path: Path of the model: .bin, or an archive of arrays (.npz).
        vocabulary: Vocabulary of the source: .yml, .json, .txt, or .spm, which is also the
            tokenizer.
        target_vocabulary: Vocabulary of the target. Default: the source's.
        tokenizers: SentencePiece models of source and target. Default: the .spm vocabularies;
            without any, tokens are words.
        shortlist: Lexical shortlist. Default: that of the decoding settings.
        decoder: Decoding settings. Default: those beside the model, or of marian-decoder.
        recorded_scales: Keep the recorded activation scales of an int8 model of Bergamot's fork.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported, or lacks recorded
            activation scales that should be kept.
    """
    if recorded_scales:
        check_has_recorded_scales(path)
    arrays = (read_binary if path.suffix == ".bin" else read_npz)(path)
    config = read_model_settings(path, arrays.pop(SETTINGS, None))
    decoder = decoder or DecoderSettings.read(path)
    tensors = Tensors(
        path,
        {
            name: torch.from_numpy(array)
            for name, array in arrays.items()
            if not name.endswith(MULTIPLIER)
        },
    )
    matrices = _token_matrices(tensors)
    files = vocabulary, target_vocabulary or vocabulary
    source = target = _token_map(files[0], len(matrices.source), decoder)
    if target_vocabulary is not None and target_vocabulary != vocabulary:
        own = _token_map(files[1], len(matrices.target), decoder)
        target = source if own.names == source.names else own
    matrices.check(path, source, target)
    spm = [file if file.suffix == ".spm" else None for file in files]
    tokenizers = tokenizers[0] or spm[0], tokenizers[1] or tokenizers[0] or spm[1]
    (source, target), models = make_tokenizers(tokenizers, (source, target), is_opus_language)
    model, weights, names = _convert(config, tensors, matrices.remap(source, target))
    tensors.check_all_used()
    made = build_model(model, weights, path)
    prompt = opus_prompt(source.names, models[0])
    shortlist = shortlist or decoder.shortlist
    table = None
    if shortlist is not None:
        table = import_shortlist(shortlist, (source, target), content_hash(*models))
    scales = None
    if recorded_scales:
        matmuls = {ours: [name] for ours, name in names.items()}
        matmuls[PROJECTION] = [SHORTLISTED, *_OUTPUTS]
        scales = read_magnitudes(path, arrays, matmuls)
    return Imported(
        made, models, "marian", decoder.search, prompt, table, scales, alignment_heads(config)
    )


def _token_matrices(tensors: Tensors) -> Matrices:
    """Read the token matrices; the output's may be transposed, or tied to the target's."""
    source, target = (tensors.table(f"{stack}_Wemb", "Wemb") for stack in STACKS)
    output = target
    if "decoder_ff_logit_out_W" in tensors:
        output = tensors.table("decoder_ff_logit_out_W").T.contiguous()
    elif "decoder_ff_logit_out_Wt" in tensors:
        output = tensors.table("decoder_ff_logit_out_Wt")
    bias = None
    if "decoder_ff_logit_out_b" in tensors:
        bias = tensors.take("decoder_ff_logit_out_b").reshape(-1)
    return Matrices(source, target, output, bias)


def _token_map(path: Path, rows: int, decoder: DecoderSettings) -> TokenMap:
    """Map the tokens of a vocabulary; rows without a token are banned."""
    tokens = read_vocabulary(path)
    special = SpecialTokens.named(tokens, (), _UNKNOWN, (), _END)
    if special.end is None or special.unknown is None:
        raise InputError(
            f"{path} lacks {_END[0]} or {_UNKNOWN[0]}; pass the vocabulary that Marian was trained "
            "with."
        )
    spare = range(len(tokens), rows)
    banned = [*decoder.banned(path, tokens, special.unknown), *spare]
    tokens = [*tokens, *(f"<unused-{index}>" for index in spare)]
    return TokenMap(tokens, special, banned)


def _convert(
    config: Config, tensors: Tensors, embeddings: ModelPart
) -> tuple[ModelConfig, dict[str, Tensor], dict[str, str]]:
    """Return the configuration, the weights by our names, and the names of `_Reader.matrices`."""
    norm = norm_of(config)
    operations = str(config.values.get("transformer-postprocess-emb", "")).replace("d", "")
    if operations not in ("", "n"):
        raise config.setting_error("transformer-postprocess-emb", "supported: d, n and nd")
    # Of tied layers, the arrays have the number of the first layer that uses them, or any other.
    numbers = decoder_numbers(config)
    distinct = list(dict.fromkeys(numbers))
    place = {number: index for index, number in enumerate(distinct, start=1)}
    ties = [place[number] for number in numbers]
    inner, decoder_inner = config.integer("transformer-dim-ffn"), 0
    if "transformer-decoder-dim-ffn" in config.values:
        decoder_inner = config.integer("transformer-decoder-dim-ffn")
    try:
        model = ModelConfig(
            encoder_layers=config.integer("enc-depth"),
            decoder_layers=len(numbers),
            d_ff=inner,
            decoder_d_ff=0 if decoder_inner == inner else decoder_inner,
            decoder_mixer="ssru" if recurrent(config) else "self-attention",
            decoder_ties=",".join(map(str, ties)) if len(distinct) < len(numbers) else "",
            heads=config.integer("transformer-heads"),
            dropout=0.0,
            norm=norm,
            activation=config.values["transformer-ffn-activation"],
            layer_norm_epsilon=_EPSILON,
            sinusoid="tensor2tensor",
            norm_embedding=operations == "n",
            **embeddings.fields,
        )
    except OptionError as error:
        raise InputError(f"{config.path}: its settings do not fit together: {error}") from error
    reader = _Reader(tensors)
    layers = {"encoder": range(1, model.encoder_layers + 1), "decoder": distinct}
    weights = read_modules(model, _names(config, norm), reader.module, layers)
    return model, embeddings.weights | weights, reader.matrices


def _names(config: Config, norm: str) -> dict[str, StackNames]:
    """Return Marian's names of matrices, and of LayerNorms with {} for "scale" or "bias".

    The bias of a matrix has the same name with b in place of W.
    """
    end = "_ln_{}_pre" if norm == "pre" else "_ln_{}"
    mixer, cross_attention = (
        attention_names(ours, f"{name}_W", ("q", "k", "v", "o"), f"{name}_Wo{end}")
        for name, ours in (("self", "self_attention"), ("context", "cross_attention"))
    )
    feed_forward = {
        "feed_forward.inner": "ffn_W1",
        "feed_forward.outer": "ffn_W2",
        "feed_forward_norm.norm": f"ffn_ffn{end}",
    }
    encoder = mixer | feed_forward
    if recurrent(config):
        place = "rnn" if norm == "pre" else "rnn_ffn"
        mixer = {
            "ssru.forget": "rnn_Wf", "ssru.input": "rnn_W", "ssru_norm.norm": f"{place}{end}"
        }  # fmt: skip
    decoder = mixer | cross_attention | feed_forward
    return {
        stack: StackNames(
            f"{stack}_l{{}}_", modules, f"{stack}_top_ln_{{}}", f"{stack}_emb_ln_{{}}_pre"
        )
        for stack, modules in zip(STACKS, (encoder, decoder), strict=True)
    }


@dataclass
class _Reader:
    """Reader of modules.

    Attributes:
        tensors: Tensors of the model.
        matrices: Marian's names of the matrices that were read, by our names of the modules.
    """

    tensors: Tensors
    matrices: dict[str, str] = field(default_factory=dict)

    def module(self, name: str, ours: str) -> dict[str, Tensor]:
        """Read a module's weight and bias, by their names in `Transformer`."""
        if ours.endswith("norm"):
            parts = (("weight", "scale"), ("bias", "bias"))
            return {
                f"{ours}.{part}": self.tensors.take(name.format(x)).reshape(-1) for part, x in parts
            }
        self.matrices[ours] = name
        weights = {f"{ours}.weight": self.tensors.table(name).T.contiguous()}  # from [in, out]
        if not ours.endswith("ssru.input"):
            bias = self.tensors.take(name.replace("_W", "_b"))
            weights[f"{ours}.bias"] = bias.reshape(-1)
        return weights
