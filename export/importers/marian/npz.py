"""Importer of model.npz, which contains its settings as YAML.

Decoding starts with a zero embedding, which becomes the start token's row. Positions are those of
tensor2tensor (`sinusoidalPositionEmbeddings` in src/graph/node_initializers.cpp).
"""

from __future__ import annotations

import logging
import math
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.hugging_face.directory import Config, Tensors
from translate_trt.export.importers.imported import Imported, ModelPart, build_model
from translate_trt.export.importers.languages import is_opus_language, opus_prompt
from translate_trt.export.importers.marian.decoder_settings import DecoderSettings
from translate_trt.export.importers.marian.files import SETTINGS, read_settings, read_vocabulary
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.sizes import check_archive
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

log = logging.getLogger("translate_trt")

_STACKS = ("encoder", "decoder")
# Names in src/data/types.h, and those of Nematus.
_END, _UNKNOWN = ("</s>", "eos"), ("<unk>", "UNK")
_ACTIVATIONS = ("relu", "swish")
# Supported values of settings that change the layers; the first value is the default.
_ONLY: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-pool": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-alibi-shift": (False,),
    "transformer-alibi-trainable": (False,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "factors-dim-emb": (0,),
    "ulr": (False,),
    "right-left": (False,),
    "input-types": ([], ["sequence"], ["sequence", "sequence"]),
    "input-reorder": ([],),
    "input-join-fields": (False,),
    "special-vocab": ([],),
}
# Settings that `_convert` and its helpers read.
_READ = (
    "dim-emb", "dim-vocabs", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn",
    "transformer-decoder-dim-ffn", "transformer-ffn-activation", "transformer-preprocess",
    "transformer-postprocess", "transformer-postprocess-emb", "transformer-postprocess-top",
)  # fmt: skip
# Settings without effect on a Transformer without factors: ties, which the arrays imply, and
# settings of RNNs, average attention, BERT and training.
_WITHOUT_EFFECT = (
    "version", "dim-rnn", "enc-type", "enc-cell", "enc-cell-depth", "dec-cell",
    "dec-cell-base-depth", "dec-cell-high-depth", "skip", "layer-normalization",
    "tied-embeddings", "tied-embeddings-src", "tied-embeddings-all", "output-omit-bias",
    "factors-combine", "separator-symbol", "ulr-dim-emb", "ulr-trainable-transformation",
    "transformer-dim-aan", "transformer-aan-depth", "transformer-aan-activation",
    "transformer-aan-nogate", "transformer-rnn-projection", "transformer-guided-alignment-layer",
    "transformer-depth-scaling", "bert-train-type-embeddings", "bert-type-vocab-size",
)  # fmt: skip
_KNOWN = {*_ONLY, *_READ, *_WITHOUT_EFFECT}
# Operations before a sub-layer, after a sub-layer and after the last layer, without dropout:
# a = residual sum, n = LayerNorm.
_NORMS = {("", "an", ""): "post", ("n", "a", "n"): "pre"}
_OPERATIONS = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
# First version certain to normalize the keys and values of pre-norm self-attention.
_PRE_NORM_VERSION = (1, 12)
_EPSILON = 1e-6  # layerNorm in src/layers/generic.h


def import_marian_npz(
    path: Path,
    vocabulary: Path,
    target_vocabulary: Path | None = None,
    tokenizers: tuple[Path | None, Path | None] = (None, None),
) -> Imported:
    """Import a model.npz that marian wrote.

    Args:
        path: Path of model.npz.
        vocabulary: Vocabulary of the source: .yml, .json, .txt, or .spm, which is also the
            tokenizer.
        target_vocabulary: Vocabulary of the target. Default: the source's.
        tokenizers: SentencePiece models of source and target. Default: the .spm vocabularies;
            without any, tokens are words.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    arrays = _read_arrays(path)
    config = _settings(path, arrays.pop(SETTINGS, None))
    decoder = DecoderSettings.read(path)
    tensors = Tensors(path, {name: torch.from_numpy(array) for name, array in arrays.items()})
    matrices = _matrices(tensors)
    files = vocabulary, target_vocabulary or vocabulary
    source = target = _token_map(files[0], len(matrices.source), decoder)
    if target_vocabulary is not None and target_vocabulary != vocabulary:
        own = _token_map(files[1], len(matrices.target), decoder)
        target = source if own.names == source.names else own
    matrices.check(path, source, target)
    spm = [file if file.suffix == ".spm" else None for file in files]
    tokenizers = tokenizers[0] or spm[0], tokenizers[1] or tokenizers[0] or spm[1]
    (source, target), models = make_tokenizers(tokenizers, (source, target), is_opus_language)
    model, weights = _convert(config, tensors, matrices.remap(source, target))
    tensors.check_all_used(set())
    made = build_model(model, weights, path)
    prompt = opus_prompt(source.names, models[0])
    return Imported(made, models, "marian", decoder.search, prompt)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
            found = {
                entry.filename.removesuffix(".npy"): _read_array(path, archive, entry)
                for entry in archive.infolist()
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(
            f"cannot read {path}: {reason}. Pass the model.npz that marian wrote (files of "
            "marian-conv are not supported)."
        ) from error
    for name, array in found.items():
        if name != SETTINGS and array.dtype.kind != "f":
            raise InputError(
                f"{path}: {name} has elements of type {array.dtype}; pass the model as trained, "
                "with floating-point weights."
            )
    return {
        name: array if name == SETTINGS else np.array(array, np.float32, order="C")
        for name, array in found.items()
    }


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Read an entry of the archive, after comparing its size with its declared shape."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            header = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        size, stored = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if dtype.hasobject:
            raise InputError(
                f"{path}: {entry.filename} contains pickled objects, which are not supported."
            )
        if size != stored:
            raise InputError(
                f"{path}: {entry.filename} has shape {list(shape)} of {dtype}, {size:,} bytes, but "
                f"stores {stored:,}; the file is damaged, or marian did not write it."
            )
        array = np.frombuffer(file.read(), dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _settings(path: Path, content: np.ndarray | None) -> Config:
    if content is None:
        raise InputError(f"{path} has no {SETTINGS}; pass the model.npz that marian wrote.")
    text = content.tobytes().rstrip(b"\0").decode("utf-8", "replace")
    config = Config(path, read_settings(path, text))
    for name in sorted(set(config.values) - _KNOWN):
        raise config.setting_error(name, "this setting of Marian's models is unknown")
    for name, allowed in _ONLY.items():
        if not any(_is(config.values.get(name, allowed[0]), value) for value in allowed):
            supported = " or ".join(repr(value) for value in allowed)
            raise config.setting_error(name, f"supported: {supported}")
    if len(config.values.get("dim-vocabs", [])) > 2:
        raise config.setting_error("dim-vocabs", "only one source and one target are supported")
    if config.values.get("transformer-ffn-activation") not in _ACTIVATIONS:
        raise config.setting_error(
            "transformer-ffn-activation", f"supported: {', '.join(_ACTIVATIONS)}"
        )
    inner = config.integer("transformer-dim-ffn")
    if config.values.get("transformer-decoder-dim-ffn", 0) not in (0, inner):
        raise config.setting_error(
            "transformer-decoder-dim-ffn",
            "both stacks must have the same size (transformer-dim-ffn)",
        )
    return config


def _is(value: Any, other: Any) -> bool:
    """Return whether two YAML values are equal and of one type; 0 is not false."""
    return type(value) is type(other) and bool(value == other)


def _norm_of(config: Config) -> str:
    steps = tuple(str(config.values.get(name, "")).replace("d", "") for name in _OPERATIONS)
    found = _NORMS.get((steps[0], steps[1], steps[2]))
    if found is None:
        raise config.setting_error(
            _OPERATIONS[1],
            f"with {_OPERATIONS[0]} {steps[0]!r} and {_OPERATIONS[2]} {steps[2]!r}; supported: "
            "dan alone, and n before, da after and n on top",
        )
    return found


def _check_pre_norm(config: Config) -> None:
    """Refuse versions that may compute pre-norm keys and values without LayerNorm."""
    match = re.match(r"v?(\d+)\.(\d+)\b", str(config.values.get("version", "")))
    if match is None or (int(match[1]), int(match[2])) < _PRE_NORM_VERSION:
        raise config.setting_error(
            "version",
            "pre-norm models (transformer-preprocess n) need Marian 1.12 or later: earlier "
            "versions had no LayerNorm before the keys and values of self-attention. Continue "
            "training with Marian 1.12 for some updates",
        )
    log.warning(
        "%s is a pre-norm model: marian-decoder computes keys and values of the decoder's "
        "self-attention differently from training and marian-scorer. translate-trt follows the "
        "latter (docs/import.md, Differences to know).", config.path,
    )  # fmt: skip


def _matrices(tensors: Tensors) -> Matrices:
    """Read the token matrices; the output's may be transposed, or tied to the target's."""
    source, target = (tensors.take(f"{stack}_Wemb", "Wemb") for stack in _STACKS)
    output = target
    if "decoder_ff_logit_out_W" in tensors:
        output = tensors.take("decoder_ff_logit_out_W").T.contiguous()
    elif "decoder_ff_logit_out_Wt" in tensors:
        output = tensors.take("decoder_ff_logit_out_Wt")
    bias = None
    if "decoder_ff_logit_out_b" in tensors:
        bias = tensors.take("decoder_ff_logit_out_b").reshape(-1)
    return Matrices(source, target, output, bias)


def _token_map(path: Path, rows: int, decoder: DecoderSettings) -> TokenMap:
    """Map the tokens of a vocabulary; rows without a token are banned."""
    tokens = read_vocabulary(path)
    end, unknown = (
        next((tokens.index(name) for name in names if name in tokens), None)
        for names in (_END, _UNKNOWN)
    )
    if end is None or unknown is None:
        raise InputError(
            f"{path} lacks {_END[0]} or {_UNKNOWN[0]}; pass the vocabulary that Marian was trained "
            "with."
        )
    spare = range(len(tokens), rows)
    banned = [*decoder.banned(path, tokens, unknown), *spare]
    tokens = [*tokens, *(f"<unused-{index}>" for index in spare)]
    return TokenMap(tokens, SpecialTokens(None, unknown, None, end), banned)


def _convert(
    config: Config, tensors: Tensors, embeddings: ModelPart
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`."""
    norm = _norm_of(config)
    if norm == "pre":
        _check_pre_norm(config)
    operations = str(config.values.get("transformer-postprocess-emb", "")).replace("d", "")
    if operations not in ("", "n"):
        raise config.setting_error("transformer-postprocess-emb", "supported: d, n and nd")
    model = ModelConfig(
        encoder_layers=config.integer("enc-depth"),
        decoder_layers=config.integer("dec-depth"),
        d_ff=config.integer("transformer-dim-ffn"),
        heads=config.integer("transformer-heads"),
        dropout=0.0,
        norm=norm,
        activation=config.values["transformer-ffn-activation"],
        layer_norm_epsilon=_EPSILON,
        sinusoid="tensor2tensor",
        norm_embedding=operations == "n",
        **embeddings.fields,
    )
    weights = dict(embeddings.weights)
    before = "_pre" if norm == "pre" else ""
    for stack, name, count in (
        ("encoder", "source_embedding_norm", model.encoder_layers),
        ("decoder", "embedding_norm", model.decoder_layers),
    ):
        if model.norm_embedding:
            weights |= _norm(tensors, f"{stack}_emb", "_pre", name)
        if norm == "pre":
            weights |= _norm(tensors, f"{stack}_top", "", f"{stack}_norm")
        for index in range(count):
            weights |= _layer(tensors, stack, index, before)
    return model, weights


def _layer(tensors: Tensors, stack: str, index: int, before: str) -> dict[str, Tensor]:
    old, new = f"{stack}_l{index + 1}", f"{stack}.{index}"
    weights: dict[str, Tensor] = {}
    attentions = {"self": "self_attention", "context": "cross_attention"}
    for attention, ours in attentions.items():
        if stack == "encoder" and attention == "context":
            continue
        for letter, part in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            weights |= _linear(tensors, f"{old}_{attention}", letter, f"{new}.{ours}.{part}")
        weights |= _norm(tensors, f"{old}_{attention}_Wo", before, f"{new}.{ours}_norm.norm")
    for number, part in (("1", "inner"), ("2", "outer")):
        weights |= _linear(tensors, f"{old}_ffn", number, f"{new}.feed_forward.{part}")
    return weights | _norm(tensors, f"{old}_ffn_ffn", before, f"{new}.feed_forward_norm.norm")


def _linear(tensors: Tensors, old: str, suffix: str, new: str) -> dict[str, Tensor]:
    """Read a projection, stored as [in, out] and [1, out]."""
    return {
        f"{new}.weight": tensors.take(f"{old}_W{suffix}").T.contiguous(),
        f"{new}.bias": tensors.take(f"{old}_b{suffix}").reshape(-1),
    }


def _norm(tensors: Tensors, old: str, before: str, new: str) -> dict[str, Tensor]:
    return {
        f"{new}.weight": tensors.take(f"{old}_ln_scale{before}").reshape(-1),
        f"{new}.bias": tensors.take(f"{old}_ln_bias{before}").reshape(-1),
    }
