"""Arrays of CTranslate2's models whose shape or value no converter writes."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from support.ctranslate2_models import HEADS, WIDTH, save_random_model, words

from translate_trt.export.importers.ctranslate2.converted import import_ctranslate2
from translate_trt.export.importers.ctranslate2.model_bin import read_model_file
from translate_trt.runtime.errors import InputError


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write model.bin in CTranslate2's layout 6."""

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    parts = [struct.pack("<I", 6), text("TransformerSpec"), struct.pack("<II", 7, len(arrays))]
    for name, array in arrays.items():
        kind = ["float32", "int8", "int16"].index(str(array.dtype))
        axes = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        parts += [text(name), axes, struct.pack("<BI", kind, array.nbytes), array.tobytes()]
    path.write_bytes(b"".join([*parts, struct.pack("<I", 0)]))


SHAPES: dict[str, dict[str, np.ndarray]] = {
    "encoder/embeddings_0/weight has 1 axes": {
        "encoder/embeddings_0/weight": np.ones(40, np.float32)
    },
    "decoder/embeddings/weight has 0 axes": {"decoder/embeddings/weight": np.array(1, np.float32)},
    "ffn/linear_0/weight has 0 axes": {
        "encoder/layer_0/ffn/linear_0/weight": np.array(1, np.float32)
    },
    "self_attention/linear_0/weight has 2 rows, which are not those of 3 projections": {
        "encoder/layer_0/self_attention/linear_0/weight": np.ones((2, WIDTH), np.float32)
    },
    "encodings has 3 axes": {
        f"{stack}/position_encodings/encodings": np.ones((4, 2, 2), np.float32)
        for stack in ("encoder", "decoder")
    },
    "scale_embeddings has 2 elements, not one": {
        "encoder/scale_embeddings": np.ones(2, np.float32)
    },
    "alignment_layer is inf, not a finite number": {
        "decoder/alignment_layer": np.array(np.inf, np.float32)
    },
    "num_heads is nan": {
        f"{stack}/num_heads": np.array(np.nan, np.float32) for stack in ("encoder", "decoder")
    },
    r"the bias of the output has shape \[3\], but the vocabulary has 40": {
        "decoder/projection/bias": np.ones(3, np.float32)
    },
    "bias_scale does not fit decoder/projection/bias": {
        "decoder/projection/bias_scale": np.ones(40, np.float32)
    },
    "gamma has 2 axes": {"encoder/layer_norm/gamma": np.ones((WIDTH, 1), np.float32)},
}


@pytest.mark.parametrize("message", SHAPES)
def test_shapes_of_arrays(message: str, tmp_path: Path) -> None:
    tokens = words(40, "w")
    directory = save_random_model(tmp_path / "model", (tokens, tokens), (1, 1))
    arrays = read_model_file(directory / "model.bin").arrays
    write_arrays(directory / "model.bin", arrays)
    import_ctranslate2(directory)
    write_arrays(directory / "model.bin", arrays | SHAPES[message])
    with pytest.raises(InputError, match=message):
        import_ctranslate2(directory)


def test_scaled_queries(tmp_path: Path) -> None:
    """The scale of queries replaces 1 / sqrt(D)."""
    tokens = words(40, "w")
    directory = save_random_model(tmp_path / "model", (tokens, tokens), (1, 1))
    arrays = read_model_file(directory / "model.bin").arrays
    plain = import_ctranslate2(directory).model.encoder_layers[0].self_attention
    scale = {"encoder/layer_0/self_attention/queries_scale": np.array(0.25, np.float32)}
    write_arrays(directory / "model.bin", arrays | scale)
    scaled = import_ctranslate2(directory).model.encoder_layers[0].self_attention
    factor = 0.25 * math.sqrt(WIDTH / HEADS)
    for name, weight in plain.state_dict().items():
        expected = weight * factor if name.startswith("query") else weight
        torch.testing.assert_close(scaled.state_dict()[name], expected)
