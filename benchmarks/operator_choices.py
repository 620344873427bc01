"""Ways to write the same part of a step for ONNX Runtime on a CPU, run in turn.

    python benchmarks/operator_choices.py [--threads 1] [--rounds 40]

The first way of each part is the plain one; the others are held against its result. Sizes are those
of the base model with 4 beams. Ways that write caches in place have them bound as input and output,
as the runtime does; ONNX Runtime's own fusion of residual sums is off, as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, TensorProto, helper, numpy_helper
from report import alternate, parser, ratios, seconds_of, write

HEADS, HEAD_SIZE, BEAMS = 8, 64, 4
SIZE, HIDDEN, VOCABULARY = HEADS * HEAD_SIZE, 2048, 37_000
node = helper.make_node

Feeds = dict[str, np.ndarray]
Ways = dict[str, tuple[list[NodeProto], int]]  # nodes and opset
random = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    """Standard normal numbers."""
    return random.standard_normal(shape).astype(np.float32)


def session(
    nodes: Sequence[NodeProto], opset: int, feeds: Feeds, constants: Feeds, outputs: Sequence[str],
    threads: int,
) -> Any:  # fmt: skip
    """Those nodes, loaded; inputs have no fixed size, as in the real graphs."""

    def declared(name: str, array: np.ndarray | None) -> Any:
        kind = None if array is None else helper.np_dtype_to_tensor_dtype(array.dtype)
        axes = None if array is None else [f"{name}_{axis}" for axis in range(array.ndim)]
        return helper.make_tensor_value_info(name, kind or TensorProto.FLOAT, axes)

    made = {name for one in nodes for name in one.output}
    used = {name for one in nodes for name in one.input} - made
    graph = helper.make_graph(
        nodes, "part",
        [declared(name, array) for name, array in feeds.items() if name in used],
        [declared(name, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in constants.items() if name in used],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry(
        "optimization.disable_specified_optimizers", "SkipLayerNormFusion"
    )
    content = model.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def split(name: str) -> list[NodeProto]:
    """[N, T, H * D] -> [N, H, T, D]."""
    return [
        node("Reshape", [name, "split"], [f"{name}_split"]),
        node("Transpose", [f"{name}_split"], [f"{name}_heads"], perm=[0, 2, 1, 3]),
    ]


JOIN = [
    node("Transpose", ["context"], ["context_t"], perm=[0, 2, 1, 3]),
    node("Reshape", ["context_t", "join"], ["out"]),
]
SHAPES = {"split": np.array([0, 0, HEADS, HEAD_SIZE]), "join": np.array([0, 0, SIZE])}


def products(keys: str, values: str) -> list[NodeProto]:
    """Attention as its two products, bias and softmax."""
    return [
        node("Transpose", [keys], ["keys_t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_heads", "keys_t"], ["scores"]),
        node("Add", ["scores", "bias"], ["biased"]),
        node("Softmax", ["biased"], ["weights"], axis=-1),
        node("MatMul", ["weights", values], ["context"]),
        *JOIN,
    ]


def self_attention(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """Over caches of 15 tokens a beam."""
    appended = [
        *split("q"), *split("k"), *split("v"),
        node("Concat", ["past_k", "k_heads"], ["keys"], axis=2),
        node("Concat", ["past_v", "v_heads"], ["values"], axis=2),
    ]  # fmt: skip
    operator = node("Attention", ["q_heads", "keys", "values", "bias"], ["context"], scale=1.0)
    multi_head = node(
        "MultiHeadAttention", ["q", "k", "v", "", "", "bias", "past_k", "past_v"],
        ["out", "keys", "values"], domain="com.microsoft", num_heads=HEADS, scale=1.0,
    )  # fmt: skip
    ways: Ways = {
        "products": ([*appended, *products("keys", "values")], 20),
        "ONNX Attention": ([*appended, operator, *JOIN], 23),
        "MultiHeadAttention": ([multi_head], 20),
    }
    past = 15 * BEAMS
    feeds = {name: real(sentences, BEAMS, SIZE) / 8 for name in ("q", "k", "v")}
    feeds |= {name: real(sentences, HEADS, past, HEAD_SIZE) for name in ("past_k", "past_v")}
    feeds["bias"] = np.zeros((sentences, 1, BEAMS, past + BEAMS), np.float32)
    return ways, feeds, SHAPES


def caches(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """The same, 4 new slots behind 60, or in the last 4 of 64 that are written in place."""
    appended = node(
        "MultiHeadAttention", ["q", "k", "v", "", "", "bias", "past_k", "past_v"],
        ["out", "keys", "values"], domain="com.microsoft", num_heads=HEADS, scale=1.0,
    )  # fmt: skip
    attend = node(
        "MultiHeadAttention", ["q", "next_cache_k", "next_cache_v", "", "", "bias"], ["out"],
        domain="com.microsoft", num_heads=HEADS, scale=1.0,
    )  # fmt: skip
    heads = [
        node("Reshape", ["k", "split"], ["k_split"]), node("Reshape", ["v", "split"], ["v_split"]),
    ]  # fmt: skip
    scattered = [
        node("ScatterND", [f"cache_{x}", "places", f"{x}_split"], [f"next_cache_{x}"]) for x in "kv"
    ]
    written = [
        node("TensorScatter", [f"cache_{x}", f"{x}_heads", "begin"], [f"next_cache_{x}"], axis=2)
        for x in "kv"
    ]
    ways: Ways = {
        "appended by MultiHeadAttention": ([appended], 20),
        "ScatterND in place": ([*heads, *scattered, attend], 20),
        "TensorScatter in place": ([*split("k"), *split("v"), *written, attend], 24),
    }
    past = 15 * BEAMS
    feeds = {name: real(sentences, BEAMS, SIZE) / 8 for name in ("q", "k", "v")}
    feeds |= {name: real(sentences, HEADS, past, HEAD_SIZE) for name in ("past_k", "past_v")}
    room = np.zeros((sentences, HEADS, BEAMS, HEAD_SIZE), np.float32)
    feeds |= {f"cache_{x}": np.concatenate((feeds[f"past_{x}"], room), axis=2) for x in "kv"}
    feeds["bias"] = np.zeros((sentences, 1, BEAMS, past + BEAMS), np.float32)
    feeds["begin"] = np.full(sentences, past)
    axes = np.meshgrid(
        np.arange(sentences), past + np.arange(BEAMS), np.arange(HEADS), indexing="ij"
    )
    feeds["places"] = np.stack((axes[0], axes[2], axes[1]), axis=-1)
    return ways, feeds, SHAPES


def residual_norm(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """LayerNorm(x + y)."""
    ways: Ways = {
        "Add, LayerNormalization": (
            [
                node("Add", ["x", "y"], ["sum"]),
                node("LayerNormalization", ["sum", "scale", "shift"], ["out"], epsilon=1e-5),
            ],
            20,
        ),
        "SkipLayerNormalization": (
            [
                node("SkipLayerNormalization", ["x", "y", "scale", "shift"], ["out"],
                     domain="com.microsoft", epsilon=1e-5),
            ],
            20,
        ),
    }  # fmt: skip
    feeds = {name: real(sentences, BEAMS, SIZE) for name in "xy"}
    return ways, feeds, {"scale": real(SIZE), "shift": real(SIZE)}


def cross_attention(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """Over 30 source tokens."""
    expand = node("Expand", ["bias", "queries"], ["wide"])
    operator = node("Attention", ["q_heads", "keys", "values", "wide"], ["context"], scale=1.0)
    multi_head = node(
        "MultiHeadAttention", ["q", "keys", "values", "", "", "wide"], ["out"],
        domain="com.microsoft", num_heads=HEADS, scale=1.0,
    )  # fmt: skip
    transposed = [one for one in products("keys", "values") if one.output[0] != "keys_t"]
    ways: Ways = {
        "products": ([*split("q"), *products("keys", "values")], 20),
        "keys transposed beforehand": ([*split("q"), *transposed], 20),
        "ONNX Attention": ([expand, *split("q"), operator, *JOIN], 23),
        "MultiHeadAttention": ([expand, multi_head], 20),
    }
    feeds = {"q": real(sentences, BEAMS, SIZE) / 8}
    feeds |= {name: real(sentences, HEADS, 30, HEAD_SIZE) for name in ("keys", "values")}
    feeds["keys_t"] = np.ascontiguousarray(feeds["keys"].transpose(0, 1, 3, 2))
    feeds["bias"] = np.zeros((sentences, 1, 1, 30), np.float32)
    return ways, feeds, SHAPES | {"queries": np.array([1, 1, BEAMS, 1])}


def candidates(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """The best 9 of 37,000 logits with their log-probabilities."""
    top = node("TopK", ["logits", "count"], ["top", "tokens"])
    largest = node("Slice", ["top", "zero", "one", "last"], ["largest"])
    shifted = node("Sub", ["top", "log_total"], ["out"])
    ways: Ways = {
        "log-softmax, then top-k": (
            [
                node("LogSoftmax", ["logits"], ["log_probs"], axis=-1),
                node("TopK", ["log_probs", "count"], ["out", "tokens"]),
            ],
            20,
        ),
        "top-k, then exp and sum": (
            [
                top, largest,
                node("Sub", ["logits", "largest"], ["less"]),
                node("Exp", ["less"], ["exp"]),
                node("ReduceSum", ["exp", "last"], ["sum"], keepdims=1),
                node("Log", ["sum"], ["log_sum"]),
                node("Add", ["largest", "log_sum"], ["log_total"]),
                shifted,
            ],
            20,
        ),
        "top-k, then softmax of the largest": (
            [
                top, largest,
                node("Softmax", ["logits"], ["probs"], axis=-1),
                node("Slice", ["tokens", "zero", "one", "last"], ["best"]),
                node("GatherElements", ["probs", "best"], ["prob"], axis=-1),
                node("Log", ["prob"], ["log_prob"]),
                node("Sub", ["largest", "log_prob"], ["log_total"]),
                shifted,
            ],
            20,
        ),
        "top-k, then ReduceLogSumExp": (
            [top, node("ReduceLogSumExp", ["logits", "last"], ["log_total"], keepdims=1), shifted],
            20,
        ),
    }  # fmt: skip
    numbers = {"count": 2 * BEAMS + 1, "zero": 0, "one": 1, "last": -1}
    constants = {name: np.array([number]) for name, number in numbers.items()}
    return ways, {"logits": 3 * real(sentences, BEAMS, VOCABULARY)}, constants


def feed_forward(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """max(0, x W + b) in fp32."""
    flat = node("Reshape", ["x", "flat"], ["rows"])
    back = node("Reshape", ["wide", "back"], ["out"])
    ways: Ways = {
        "MatMul, Add, Relu": (
            [
                node("MatMul", ["x", "w"], ["m"]),
                node("Add", ["m", "b"], ["a"]),
                node("Relu", ["a"], ["out"]),
            ],
            20,
        ),
        "FusedGemm": (
            [
                flat,
                node("FusedGemm", ["rows", "w", "b"], ["wide"], domain="com.microsoft",
                     activation="Relu"),
                back,
            ],
            20,
        ),
    }  # fmt: skip
    constants = {"w": real(SIZE, HIDDEN) / 20, "b": real(HIDDEN)}
    constants |= {"flat": np.array([-1, SIZE]), "back": np.array([-1, BEAMS, HIDDEN])}
    return ways, {"x": real(sentences, BEAMS, SIZE)}, constants


def int8_product(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """x W + b with 8-bit weights and rows."""
    scale = [
        node("Abs", ["x"], ["abs"]),
        node("ReduceMax", ["abs", "last"], ["max"], keepdims=1),
        node("Mul", ["max", "step"], ["scale"]),
        node("Div", ["x", "scale"], ["ratio"]),
    ]
    rounded = [
        node("Round", ["ratio"], ["round"]),
        node("Add", ["round", "offset"], ["shifted"]),
        node("Cast", ["shifted"], ["rows"], to=TensorProto.UINT8),
    ]
    quantized = [node("QuantizeLinear", ["ratio", "unit", "zero"], ["rows"])]
    plain = [
        node("MatMulInteger", ["rows", "w", "zero"], ["int"]),
        node("Cast", ["int"], ["real"], to=TensorProto.FLOAT),
        node("Mul", ["real", "w_scale"], ["by_column"]),
    ]
    fused = [
        node("MatMulIntegerToFloat", ["rows", "w", "unit", "w_scale", "zero"], ["by_column"],
             domain="com.microsoft"),
    ]  # fmt: skip
    end = [node("Mul", ["by_column", "scale"], ["m"]), node("Add", ["m", "b"], ["out"])]
    by_blocks = [
        *scale[:3],
        node("Shape", ["scale"], ["sizes"]),
        node("Expand", ["zero", "sizes"], ["zeros"]),
        node("QuantizeLinear", ["x", "scale", "zeros"], ["rows"], axis=-1, block_size=SIZE),
        plain[0],
        node("DequantizeLinear", ["int", "scale"], ["by_row"], axis=-1, block_size=HIDDEN),
        node("Mul", ["by_row", "w_scale"], ["m"]),
        end[1],
    ]
    ways: Ways = {
        "round, shift, cast": ([*scale, *rounded, *plain, *end], 20),
        "QuantizeLinear": ([*scale, *quantized, *plain, *end], 20),
        "QuantizeLinear, MatMulIntegerToFloat": ([*scale, *quantized, *fused, *end], 20),
        "QuantizeLinear and DequantizeLinear by rows": (by_blocks, 21),
    }
    constants: Feeds = {
        "w": random.integers(-127, 128, (SIZE, HIDDEN)).astype(np.int8),
        "w_scale": np.abs(real(HIDDEN)) / 127, "b": real(HIDDEN),
        "zero": np.array(128, np.uint8), "unit": np.array(1, np.float32),
        "step": np.array(1 / 127, np.float32), "offset": np.array(128, np.float32),
        "last": np.array([-1]),
    }  # fmt: skip
    return ways, {"x": real(sentences, BEAMS, SIZE)}, constants


def int8_logits(sentences: int) -> tuple[Ways, Feeds, Feeds]:
    """37,000 logits in 8 bits, from rows that are quantized already."""
    ways: Ways = {
        "MatMulInteger, Cast, Mul, Mul": (
            [
                node("MatMulInteger", ["rows", "w", "zero"], ["int"]),
                node("Cast", ["int"], ["real"], to=TensorProto.FLOAT),
                node("Mul", ["real", "w_scale"], ["by_column"]),
                node("Mul", ["by_column", "scale"], ["out"]),
            ],
            20,
        ),
        "MatMulIntegerToFloat, Mul": (
            [
                node("MatMulIntegerToFloat", ["rows", "w", "unit", "w_scale", "zero"],
                     ["by_column"], domain="com.microsoft"),
                node("Mul", ["by_column", "scale"], ["out"]),
            ],
            20,
        ),
    }  # fmt: skip
    feeds: Feeds = {"rows": random.integers(0, 256, (sentences, BEAMS, SIZE)).astype(np.uint8)}
    feeds["scale"] = np.abs(real(sentences, BEAMS, 1)) / 127
    constants: Feeds = {
        "w": random.integers(-127, 128, (SIZE, VOCABULARY)).astype(np.int8),
        "w_scale": np.abs(real(VOCABULARY)) / 127,
        "zero": np.array(128, np.uint8), "unit": np.array(1, np.float32),
    }  # fmt: skip
    return ways, feeds, constants


PARTS = {
    "self-attention": self_attention,
    "caches": caches,
    "residual norm": residual_norm,
    "cross-attention": cross_attention,
    "candidates": candidates,
    "feed-forward": feed_forward,
    "int8 product": int8_product,
    "int8 logits": int8_logits,
}
# The step hands its caches on, so they are outputs here too.
OUTPUTS = {"self-attention": ("keys", "values"), "caches": ("keys", "values")}
IN_PLACE = {"next_cache_k": "cache_k", "next_cache_v": "cache_v"}


def bound(loaded: Any, feeds: Feeds) -> Any:
    """A call of the session on these arrays, caches in place; it returns the first output."""
    binding = loaded.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for one in loaded.get_inputs():
        binding.bind_ortvalue_input(one.name, values[one.name])
    for one in loaded.get_outputs():
        if one.name in IN_PLACE:
            binding.bind_ortvalue_output(one.name, values[IN_PLACE[one.name]])
        else:
            binding.bind_output(one.name)

    def run() -> Any:
        loaded.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return run


def main() -> None:
    """Measure and write."""
    args = parser(__doc__).parse_args()
    samples: dict[str, Any] = {}
    for part, make in PARTS.items():
        for sentences in (1, 8, 32):
            ways, feeds, constants = make(sentences)
            systems, expected = {}, None
            for way, (nodes, opset) in ways.items():
                made = {name for one in nodes for name in one.output}
                handed_on = {*OUTPUTS.get(part, ()), *IN_PLACE} & made
                outputs = ["out", *sorted(handed_on)]
                loaded = session(nodes, opset, feeds, constants, outputs, args.threads)
                run = bound(loaded, feeds)
                found = run().numpy().copy()
                expected = found if expected is None else expected
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3, err_msg=way)
                systems[way] = seconds_of(run)
            found_samples = alternate(systems, args.rounds, warmup=3)
            samples[f"{part}, {sentences} sentences"] = found_samples
            plain = next(iter(ways))
            for way in list(ways)[1:]:
                median, *_ = ratios(found_samples, plain, way)
                print(f"{part}, {sentences} sentences: {way} / {plain} {median:.2f}", flush=True)
    print(write("operator-choices", {"threads": args.threads, "rounds": args.rounds}, samples,
                args.out))  # fmt: skip


if __name__ == "__main__":
    main()
