"""Marian's own models: model.npz, whose settings are YAML inside of it.

Decoding starts with an embedding of zeros: the start symbol's row here. Positions are as in
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
# Of src/data/types.h; the second are Nematus's.
_END, _UNKNOWN = ("</s>", "eos"), ("<unk>", "UNK")
_ACTIVATIONS = ("relu", "swish")
# Settings that make other layers, and their values for the paper's; the first is the default.
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
# Settings that do not change a Transformer without factors: the arrays say which matrices are
# tied, and the others are of RNNs, average attention, BERT, and training.
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
# Operations before, after and behind the layers, without dropout: a sum, LayerNorm.
_NORMS = {("", "an", ""): "post", ("n", "a", "n"): "pre"}
_OPERATIONS = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
# From this version on, for certain, keys and values of pre-norm self-attention are normalized.
_PRE_NORM_VERSION = (1, 12)
_EPSILON = 1e-6  # of layerNorm in src/layers/generic.h


def import_marian_npz(
    path: Path,
    vocabulary: Path,
    target_vocabulary: Path | None = None,
    tokenizers: tuple[Path | None, Path | None] = (None, None),
) -> Imported:
    """The model in a file that marian wrote.

    Args:
        path: model.npz.
        vocabulary: of the source: .yml, .json, .txt, or .spm, which is its tokenizer too.
        target_vocabulary: of the target; None: both share the source's.
        tokenizers: SentencePiece models of source and target, where the vocabularies are of their
            pieces; None: the vocabularies if they are such models, else tokens are words.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented; the message names what.
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
    pieces = [file if file.suffix == ".spm" else None for file in files]
    given = tokenizers[0] or pieces[0], tokenizers[1] or tokenizers[0] or pieces[1]
    (source, target), models = make_tokenizers(given, (source, target), is_opus_language)
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
            f"cannot read {path}: {reason}. Give the model.npz that marian wrote (files of "
            "marian-conv are not read)."
        ) from error
    for name, array in found.items():
        if name != SETTINGS and array.dtype.kind != "f":
            raise InputError(
                f"{path}: {name} has elements of type {array.dtype}; give the model as it was "
                "trained, with weights in floating point."
            )
    return {
        name: array if name == SETTINGS else np.array(array, np.float32, order="C")
        for name, array in found.items()
    }


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """An entry of the archive, whose size is compared with its declared shape first."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            header = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        size, there = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if dtype.hasobject:
            raise InputError(f"{path}: {entry.filename} is pickled objects, which are not read.")
        if size != there:
            raise InputError(
                f"{path}: {entry.filename} has shape {list(shape)} of {dtype}, which are {size:,} "
                f"bytes, but {there:,} are there; it is damaged, or was not written by marian."
            )
        array = np.frombuffer(file.read(), dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _settings(path: Path, content: np.ndarray | None) -> Config:
    if content is None:
        raise InputError(f"{path} has no {SETTINGS}; give the model.npz that marian wrote.")
    text = content.tobytes().rstrip(b"\0").decode("utf-8", "replace")
    config = Config(path, read_settings(path, text))
    for name in sorted(set(config.values) - _KNOWN):
        raise config.setting_error(
            name, "translate-trt does not know this setting of Marian's models"
        )
    for name, allowed in _ONLY.items():
        if not any(_is(config.values.get(name, allowed[0]), value) for value in allowed):
            represented = " or ".join(repr(value) for value in allowed)
            raise config.setting_error(name, f"represented is {represented}")
    if len(config.values.get("dim-vocabs", [])) > 2:
        raise config.setting_error(
            "dim-vocabs", "models of one source and one target are represented"
        )
    if config.values.get("transformer-ffn-activation") not in _ACTIVATIONS:
        raise config.setting_error(
            "transformer-ffn-activation", f"represented are {', '.join(_ACTIVATIONS)}"
        )
    inner = config.integer("transformer-dim-ffn")
    if config.values.get("transformer-decoder-dim-ffn", 0) not in (0, inner):
        raise config.setting_error(
            "transformer-decoder-dim-ffn", "both stacks must have the same (transformer-dim-ffn)"
        )
    return config


def _is(value: Any, other: Any) -> bool:
    """Whether two values of YAML are the same; 0 is not false."""
    return type(value) is type(other) and bool(value == other)


def _norm_of(config: Config) -> str:
    steps = tuple(str(config.values.get(name, "")).replace("d", "") for name in _OPERATIONS)
    found = _NORMS.get((steps[0], steps[1], steps[2]))
    if found is None:
        raise config.setting_error(
            _OPERATIONS[1],
            f"with {_OPERATIONS[0]} {steps[0]!r} and {_OPERATIONS[2]} {steps[2]!r}; represented "
            "are dan alone, and n before, da after and n on top",
        )
    return found


def _check_pre_norm(config: Config) -> None:
    """Refuse pre-norm models of versions that may compute keys and values without LayerNorm."""
    match = re.match(r"v?(\d+)\.(\d+)\b", str(config.values.get("version", "")))
    if match is None or (int(match[1]), int(match[2])) < _PRE_NORM_VERSION:
        raise config.setting_error(
            "version",
            "pre-norm models (transformer-preprocess n) are imported of Marian 1.12 and later: "
            "earlier ones had no LayerNorm before the keys and values of self-attention. Train "
            "the model on with Marian 1.12 for some updates",
        )
    log.warning(
        "%s is a pre-norm model: marian-decoder computes the keys and values of its decoder's "
        "self-attention otherwise than training and marian-scorer do, which translate-trt follows "
        "(docs/import.md, Differences to know).", config.path,
    )  # fmt: skip


def _matrices(tensors: Tensors) -> Matrices:
    """The output's matrix is its own, its own stored in rows, or the target's."""
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
    """Of the file's tokens, and of rows that have none."""
    tokens = read_vocabulary(path)
    end, unknown = (
        next((tokens.index(name) for name in names if name in tokens), None)
        for names in (_END, _UNKNOWN)
    )
    if end is None or unknown is None:
        raise InputError(
            f"{path} lacks {_END[0]} or {_UNKNOWN[0]}; give the vocabulary that Marian was "
            "trained with."
        )
    spare = range(len(tokens), rows)
    banned = [*decoder.banned(path, tokens, unknown), *spare]
    tokens = [*tokens, *(f"<unused-{place}>" for place in spare)]
    return TokenMap(tokens, SpecialTokens(None, unknown, None, end), banned)


def _convert(
    config: Config, tensors: Tensors, embeddings: ModelPart
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration, and the weights by their names in `Transformer`."""
    norm = _norm_of(config)
    if norm == "pre":
        _check_pre_norm(config)
    operations = str(config.values.get("transformer-postprocess-emb", "")).replace("d", "")
    if operations not in ("", "n"):
        raise config.setting_error("transformer-postprocess-emb", "represented are d, n and nd")
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
    there, here = f"{stack}_l{index + 1}", f"{stack}.{index}"
    weights: dict[str, Tensor] = {}
    attentions = {"self": "self_attention", "context": "cross_attention"}
    for attention, ours in attentions.items():
        if stack == "encoder" and attention == "context":
            continue
        for letter, part in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            weights |= _linear(tensors, f"{there}_{attention}", letter, f"{here}.{ours}.{part}")
        weights |= _norm(tensors, f"{there}_{attention}_Wo", before, f"{here}.{ours}_norm.norm")
    for number, part in (("1", "inner"), ("2", "outer")):
        weights |= _linear(tensors, f"{there}_ffn", number, f"{here}.feed_forward.{part}")
    return weights | _norm(tensors, f"{there}_ffn_ffn", before, f"{here}.feed_forward_norm.norm")


def _linear(tensors: Tensors, there: str, suffix: str, here: str) -> dict[str, Tensor]:
    """Stored [in, out] and [1, out]."""
    return {
        f"{here}.weight": tensors.take(f"{there}_W{suffix}").T.contiguous(),
        f"{here}.bias": tensors.take(f"{there}_b{suffix}").reshape(-1),
    }


def _norm(tensors: Tensors, there: str, before: str, here: str) -> dict[str, Tensor]:
    return {
        f"{here}.weight": tensors.take(f"{there}_ln_scale{before}").reshape(-1),
        f"{here}.bias": tensors.take(f"{there}_ln_bias{before}").reshape(-1),
    }
