"""Peers that translate with the same weights, tokens and search as ours.

- `ctranslate2`: CTranslate2, converted from our checkpoint through its own converter API.
- `marian`: Marian, see `marian.py`.
- `torch`, `torch-compiled`: PyTorch with the reference beam search, its layers eager or compiled.
- `onnx-host-search`: the usual export, an encoder and a decoder that returns logits, run by ONNX
  Runtime; the beam search is in Python, and the caches cross the boundary and are reordered by
  numpy at every step. Its distance to ours is the gain of compiling the search.

A peer's libraries are imported only in the process that runs the peer.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from systems import Models, Setting

from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.text.tokenizer import Tokenizer


def pieces_of(checkpoint: Path) -> list[str]:
    """Return the pieces of the vocabulary, which CTranslate2 takes in place of ids."""
    tokenizer = Tokenizer(checkpoint / "tokenizer.spm", checkpoint / "tokenizer.spm")
    return tokenizer.target_pieces(range(tokenizer.vocabulary_size))


class CTranslate2:
    """CTranslate2, called with one batch of sentences of similar length at a time.

    A call has one maximum length for all its sentences, while ours is each source's length + 50.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        # Its converters import torch if it is installed; deployments do not have it.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        import ctranslate2

        self._setting = setting
        self._pieces = pieces_of(models.checkpoint)
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}
        self._translator = ctranslate2.Translator(
            str(models.converted / f"ctranslate2-{setting.precision}"),
            compute_type={"int8": "int8", "fp32": "float32"}[setting.precision],
            inter_threads=setting.workers,
            intra_threads=setting.threads,
            max_queued_batches=-1,
        )

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        setting = self._setting
        waiting: list[tuple[int, Any]] = []
        lengths = [len(source) + 1 for source in sources]
        for rows in length_sorted_batches(lengths, setting.batch_tokens):
            batch = [[self._pieces[token] for token in sources[row]] for row in rows]
            found = self._translator.translate_batch(
                batch,
                asynchronous=True,
                beam_size=setting.beam_size,
                length_penalty=setting.length_penalty,
                max_decoding_length=max(map(len, batch)) + 50,
                use_vmap=setting.shortlist,
            )
            waiting += zip(rows, found, strict=True)
        results: list[list[int]] = [[] for _ in sources]
        for row, translation in waiting:
            best = translation.result().hypotheses[0]
            results[row] = [self._ids[piece] for piece in best]
        return results


def convert_ctranslate2(checkpoint: Path, out: Path, precision: str) -> None:
    """Write the checkpoint in CTranslate2's format.

    Raises:
        OptionError: CTranslate2 does not support the shape of the model.
    """
    from ctranslate2.converters.converter import Converter
    from ctranslate2.specs import common_spec, transformer_spec

    from translate_trt.runtime.errors import OptionError
    from translate_trt.train.checkpoint import open_checkpoint

    model = open_checkpoint(checkpoint).load_model()
    config = model.config
    if config.d_k != config.d_v:
        raise OptionError("CTranslate2 has no heads whose key_size is not their value size.")
    pieces = pieces_of(checkpoint)

    class FromCheckpoint(Converter):  # type: ignore[misc]
        def _load(self) -> Any:
            spec = transformer_spec.TransformerSpec.from_config(
                (config.encoder_layers, config.decoder_layers),
                config.heads,
                pre_norm=config.norm == "pre",
                activation=common_spec.Activation.RELU,
            )
            _fill_spec(spec, model)
            spec.register_source_vocabulary(pieces)
            spec.register_target_vocabulary(pieces)
            spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = pieces[1:4]
            spec.config.decoder_start_token = pieces[2]
            spec.config.add_source_eos = True
            spec.config.layer_norm_epsilon = config.layer_norm_epsilon
            return spec

    quantization = {"int8": "int8", "fp32": None}[precision]
    FromCheckpoint().convert(str(out), quantization=quantization, force=True)


def write_vocabulary_map(table: Path, checkpoint: Path, converted: Path) -> None:
    """Write a shortlist in CTranslate2's format: a token, a tab, and the candidates it adds.

    The candidates of the empty token are in every list. CTranslate2 makes one list for all
    sentences of a batch; our lists are per sentence.
    """
    from translate_trt.train.shortlist.table import Shortlist

    shortlist, pieces = Shortlist.load(table), pieces_of(checkpoint)
    rules = [("", shortlist.frequent), *zip(pieces, shortlist.translations, strict=True)]
    with (converted / "vmap.txt").open("w", encoding="utf-8", newline="\n") as file:
        for key, tokens in rules:
            if tokens.any():
                file.write(f"{key}\t{' '.join(pieces[token] for token in tokens if token)}\n")


def _fill_spec(spec: Any, model: Any) -> None:
    """Copy our weights into CTranslate2's specification."""
    weight = model.embedding.weight.detach().numpy()
    positions = model.positions(0, model.longest or 1024).detach().numpy()
    spec.encoder.embeddings[0].weight = weight
    spec.decoder.embeddings.weight = weight
    spec.decoder.projection.weight = weight
    for side, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        side.scale_embeddings = True
        side.position_encodings.encodings = positions
        if model.config.norm == "pre":
            _fill_norm(side.layer_norm, norm)
    if model.output_bias is not None:
        spec.decoder.projection.bias = model.output_bias.detach().numpy()
    for layer, ours in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        _fill_self_attention(layer, ours)
        _fill_feed_forward(layer, ours)
    for layer, ours in zip(spec.decoder.layer, model.decoder_layers, strict=True):
        _fill_self_attention(layer, ours)
        cross = ours.cross_attention
        _fill_linear(layer.attention.linear[0], cross.query)
        _fill_linear(layer.attention.linear[1], cross.key, cross.value)
        _fill_linear(layer.attention.linear[2], cross.output)
        _fill_norm(layer.attention.layer_norm, ours.cross_attention_norm.norm)
        _fill_feed_forward(layer, ours)


def _fill_self_attention(layer: Any, ours: Any) -> None:
    attention = ours.self_attention
    queries_keys_values = (attention.query, attention.key, attention.value)
    _fill_linear(layer.self_attention.linear[0], *queries_keys_values)
    _fill_linear(layer.self_attention.linear[1], attention.output)
    _fill_norm(layer.self_attention.layer_norm, ours.self_attention_norm.norm)


def _fill_feed_forward(layer: Any, ours: Any) -> None:
    _fill_linear(layer.ffn.linear_0, ours.feed_forward.inner)
    _fill_linear(layer.ffn.linear_1, ours.feed_forward.outer)
    _fill_norm(layer.ffn.layer_norm, ours.feed_forward_norm.norm)


def _fill_linear(spec: Any, *linears: Any) -> None:
    spec.weight = np.concatenate([linear.weight.detach().numpy() for linear in linears])
    spec.bias = np.concatenate([linear.bias.detach().numpy() for linear in linears])


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()


class Torch:
    """Reference beam search in PyTorch, fp32."""

    def __init__(self, setting: Setting, models: Models) -> None:
        import torch

        from translate_trt.train.checkpoint import open_checkpoint

        if setting.precision != "fp32":
            raise ValueError(f"PyTorch runs in fp32 here, not in {setting.precision}.")
        torch.set_num_threads(setting.threads)
        self._setting = setting
        self.model: Any = open_checkpoint(models.checkpoint).load_model()

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        from translate_trt.train.search import beam_search

        setting = self._setting
        options = setting.search_options()
        found = beam_search(self.model, sources, options, batch_tokens=setting.batch_tokens)
        return [list(hypotheses[0].tokens) for hypotheses in found]


class CompiledTorch(Torch):
    """Reference beam search with every layer compiled by torch.compile, for any size."""

    def __init__(self, setting: Setting, models: Models) -> None:
        super().__init__(setting, models)
        for layer in (*self.model.encoder, *self.model.decoder):
            layer.compile(dynamic=True)


class HostSearch(Torch):
    """Model in ONNX Runtime, search in Python."""

    def __init__(self, setting: Setting, models: Models) -> None:
        import torch
        from host_search import HostModel

        torch.set_num_threads(setting.threads)
        self._setting = setting
        directory = models.converted / f"onnx-host-search-{setting.precision}"
        self.model = HostModel(directory, setting.threads)


def convert_host_search(checkpoint: Path, out: Path, precision: str) -> None:
    """Export the model without its search."""
    from host_search import export_host_search

    export_host_search(checkpoint, out, precision)


#: Optional packages, by system.
PACKAGES = {"ctranslate2": "ctranslate2", "marian": "_pymarian"}


def installed(system: str) -> bool:
    """Return whether a system can run in this environment."""
    package = PACKAGES.get(system)
    return package is None or importlib.util.find_spec(package) is not None


#: Converters of checkpoints by system; systems without one load the checkpoint itself.
CONVERTERS = {"ctranslate2": convert_ctranslate2, "onnx-host-search": convert_host_search}
