"""Export of the model without its search: an encoder, and a decoder that returns logits.

ONNX Runtime runs both graphs. `HostModel` has the interface that translate_trt.train.search expects
of a model, so the search is the reference implementation in Python. Caches leave the decoder as
arrays at every step, numpy reorders them by parent beam, and cross-attention keys and values are
repeated for every beam.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from torch.export import Dim

from translate_trt.runtime.backends.onnxruntime import EXACT_INT8
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.model import Transformer, padding_bias

Arrays = list[NDArray[np.float32]]


class Encoder(nn.Module):
    """Encoder: source [N, S], lengths [N] -> mask, keys and values [N, H, S, D] per layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        bias = padding_bias(lengths, source.shape[1])
        memory = self.model.encode(source, bias)
        layers = self.model.decoder_layers
        return (bias, *(x for one in layers for x in one.cross_attention.keys_values(memory)))


class Decoder(nn.Module):
    """Decoder: tokens [R], position [1], mask, caches [R, H, ., D] -> logits, new caches."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("table", model.positions(0, model.longest or 1024).detach())
        # A copy: ONNX Runtime's quantizer would transpose the embeddings that share the weight.
        self.register_buffer("projection", model.embedding.weight.detach().T.clone())

    def forward(
        self, tokens: Tensor, position: Tensor, bias: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        model = self.model
        x = model.look_up(model.embedding, tokens) + self.table[position]
        x, grown = x[:, None], []
        middle = len(caches) // 2
        for index, layer in enumerate(model.decoder_layers):
            key, value = caches[2 * index : 2 * index + 2]
            past = caches[middle + 2 * index], caches[middle + 2 * index + 1]
            x, new = layer(x, past, (key, value), bias)
            grown += new
        logits = model.decoder_norm(x[:, 0]) @ self.projection
        if model.output_bias is not None:
            logits = logits + model.output_bias
        return (logits, *grown)


def export_host_search(checkpoint: Path, out: Path, precision: str) -> None:
    """Write encoder.onnx and decoder.onnx, in int8 by ONNX Runtime's own quantizer."""
    model = open_checkpoint(checkpoint).load_model()
    config = model.config
    out.mkdir()
    lengths = torch.tensor([7, 5])
    source = torch.ones(2, 7, dtype=torch.int64)
    # Each a tensor of its own: one that is given twice would become one input.
    sizes = (config.d_k, config.d_v) * config.decoder_layers
    cross = [torch.zeros(2, config.heads, 7, size) for size in sizes]
    past = [torch.zeros(2, config.heads, 3, size) for size in sizes]
    bias = torch.zeros(2, 1, 1, 7)
    auto = Dim.DYNAMIC
    graphs = {
        "encoder": (Encoder(model), (source, lengths), ({0: auto, 1: auto}, {0: auto})),
        "decoder": (
            Decoder(model),
            (torch.ones(2, dtype=torch.int64), torch.tensor([3]), bias, *cross, *past),
            ({0: auto}, {}, {0: auto, 3: auto}, tuple({0: auto, 2: auto} for _ in cross + past)),
        ),
    }
    with TemporaryDirectory() as directory:
        for name, (module, arguments, shapes) in graphs.items():
            program = torch.onnx.export(
                module.eval(), arguments, dynamo=True, dynamic_shapes=shapes, verbose=False
            )
            assert program is not None
            path = out / f"{name}.onnx"
            traced = Path(directory) / f"{name}.onnx" if precision == "int8" else path
            program.save(traced)
            if precision == "int8":
                quantize_dynamic(traced, path, per_channel=True, weight_type=QuantType.QInt8)


@dataclass
class HostCache:
    """Counterpart of `DecoderCache` in numpy arrays."""

    bias: NDArray[np.float32]
    cross: Arrays
    past: Arrays
    length: int = 0
    recorded: AttentionHeads | None = None
    attention: Tensor | None = field(default=None)

    def select(self, rows: Tensor) -> HostCache:
        """Copy the rows of the cache."""
        index = rows.numpy()
        cross, past = ([x[index] for x in caches] for caches in (self.cross, self.past))
        return HostCache(self.bias[index], cross, past, self.length)


class HostModel:
    """Both graphs behind the interface of a PyTorch model."""

    longest = None
    source_end = True

    def __init__(self, directory: Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry(*EXACT_INT8)
        self._encoder, self._decoder = (
            ort.InferenceSession(
                str(directory / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
            )
            for name in ("encoder", "decoder")
        )
        self._inputs = [value.name for value in self._decoder.get_inputs()]
        self.embedding = nn.Embedding(1, 1)  # the search looks where the model is

    def start_cache(self, source: Tensor, source_lengths: Tensor) -> HostCache:
        """Encode the sources and return an empty cache."""
        names = [value.name for value in self._encoder.get_inputs()]
        feeds = dict(zip(names, (source.numpy(), source_lengths.numpy()), strict=True))
        bias, *cross = self._encoder.run(None, feeds)
        return HostCache(bias, cross, [x[:, :, :0] for x in cross])

    def decode_next(self, tokens: Tensor, cache: HostCache) -> Tensor:
        """Return logits [R, V] and append a position to the caches."""
        given: list[Any] = [tokens.numpy(), np.array([cache.length]), cache.bias]
        feeds = dict(zip(self._inputs, given + cache.cross + cache.past, strict=True))
        logits, *cache.past = self._decoder.run(None, feeds)
        cache.length += 1
        return torch.from_numpy(logits)
