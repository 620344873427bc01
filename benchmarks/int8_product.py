"""One matrix product on the CPU in the forms that an 8-bit target could use, run in turn.

    python benchmarks/int8_product.py

All quantize activations per row and weights per column, and differ in the signs of the two and in
the operator; `fp32` is the product they replace. The mean relative error is printed beside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from report import alternate, parser, ratios, seconds_of, write

FORMS = ("fp32", "unsigned x signed", "signed x signed", "unsigned x unsigned", "fused")
CHOSEN = "unsigned x signed"
CONTRIB = "com.microsoft"


def graph(form: str, weights: np.ndarray, bias: np.ndarray) -> bytes:
    """x [M, in] -> x W + b as an ONNX model of that form."""
    scales = np.abs(weights).max(0) / 127
    quantized = np.rint(weights / scales).astype(np.int8)
    unsigned_weights = "x unsigned" in form
    constants = {
        "w": weights,
        "b": bias,
        "q": (quantized.astype(np.int16) + 128).astype(np.uint8) if unsigned_weights else quantized,
        "scales": scales.astype(np.float32),
        "per_step": np.array(1 / 127, np.float32),
        "offset": np.array(128, np.float32),
        "zero": np.array(128, np.uint8),
        "last": np.array([-1], np.int64),
        "one": np.array(1, np.float32),
    }
    node = helper.make_node
    if form == "fp32":
        nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])]
    else:
        signed = form.startswith("signed")
        nodes = [
            node("Abs", ["x"], ["magnitude"]),
            node("ReduceMax", ["magnitude", "last"], ["largest"], keepdims=1),
            node("Mul", ["largest", "per_step"], ["scale"]),
            node("Div", ["x", "scale"], ["divided"]),
            node("Round", ["divided"], ["rounded"]),
        ]
        if signed:
            nodes.append(node("Cast", ["rounded"], ["rows"], to=onnx.TensorProto.INT8))
            nodes.append(node("MatMulInteger", ["rows", "q"], ["integer"]))
        else:
            nodes.append(node("Add", ["rounded", "offset"], ["shifted"]))
            nodes.append(node("Cast", ["shifted"], ["rows"], to=onnx.TensorProto.UINT8))
            zeros = ["zero", "zero"] if unsigned_weights else ["zero"]
            if form != "fused":
                nodes.append(node("MatMulInteger", ["rows", "q", *zeros], ["integer"]))
        if form == "fused":
            given = ["rows", "q", "one", "scales", "zero"]
            nodes.append(node("MatMulIntegerToFloat", given, ["scaled"], domain=CONTRIB))
        else:
            nodes.append(node("Cast", ["integer"], ["real"], to=onnx.TensorProto.FLOAT))
            nodes.append(node("Mul", ["real", "scales"], ["scaled"]))
        nodes.append(node("Mul", ["scaled", "scale"], ["product"]))
        nodes.append(node("Add", ["product", "b"], ["y"]))
    used = {name for n in nodes for name in n.input}
    size_in, size_out = weights.shape
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "product",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["M", size_in])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["M", size_out])],
            [numpy_helper.from_array(v, name) for name, v in constants.items() if name in used],
        ),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)],
        ir_version=10,
    )
    serialized: bytes = model.SerializeToString()
    return serialized


def mean_relative_error(found: np.ndarray, right: np.ndarray) -> float:
    """Mean absolute error over mean magnitude."""
    return float(np.abs(found - right).mean() / np.abs(right).mean())


def main() -> None:
    """Measure every form for the shapes of a base model's step."""
    arguments = parser(__doc__).parse_args()
    random = np.random.default_rng(0)
    samples: dict[str, Any] = {}
    for size_in, size_out in ((512, 2048), (2048, 512), (512, 32_000)):
        weights = random.standard_normal((size_in, size_out)).astype(np.float32)
        bias = random.standard_normal(size_out).astype(np.float32)
        options = ort.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        options.log_severity_level = 3
        sessions = {
            form: ort.InferenceSession(
                graph(form, weights, bias), options, providers=["CPUExecutionProvider"]
            )
            for form in FORMS
        }
        for rows in (4, 32, 128):
            x = random.standard_normal((rows, size_in)).astype(np.float32)
            right = x @ weights + bias

            def runner(session: ort.InferenceSession) -> Callable[[], object]:
                return lambda: session.run(None, {"x": x})  # noqa: B023

            runs = {form: seconds_of(runner(session)) for form, session in sessions.items()}
            found = alternate(runs, 4 * arguments.rounds, warmup=3)
            errors = {
                form: float(
                    np.abs(session.run(None, {"x": x})[0] - right).mean() / np.abs(right).mean()
                )
                for form, session in sessions.items()
            }
            key = f"{size_in}x{size_out} M={rows}"
            samples[key] = {"seconds": found, "relative_error": errors}
            print(key)
            for form in FORMS:
                middle, _, _ = ratios(found, CHOSEN, form)
                print(
                    f"  {form:20} {1e6 * np.median(found[form]):8.0f} us  "
                    f"{middle:5.2f} of chosen  error {errors[form]:.4f}"
                )
    print(write("int8-product", {"threads": arguments.threads}, samples, arguments.out))


if __name__ == "__main__":
    main()
