"""Properties of the processor that results depend on."""

from __future__ import annotations

import functools

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper


@functools.cache
def saturates() -> bool:
    """Return whether ONNX Runtime's 8-bit matmul with non-constant weights saturates.

    EXACT_INT8 replaces constants alone; a shortlist gathers its weights.
    """
    x, w = np.full((1, 64), 255, np.uint8), np.full((64, 1), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "matmul",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 64]),
            helper.make_tensor_value_info("w", TensorProto.INT8, [64, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return int(session.run(None, {"x": x, "w": w})[0][0, 0]) != 64 * 255 * 127
