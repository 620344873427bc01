"""Layer-by-layer comparison of a target with PyTorch.

PyTorch encodes a few lines and decodes a few tokens of each. The target's graphs are forced to the
same tokens, so one differing choice does not affect later steps. 16-bit graphs round at every
operator, on any machine (`emulation_pass.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from translate_trt.export.contract import member_label
from translate_trt.export.ensemble import labelled
from translate_trt.export.taps import LOGITS, recording
from translate_trt.export.verify.cpu_emulation import (
    emulated_contract,
    graphs_of,
    has_engines,
    load_graph,
)
from translate_trt.export.verify.parity import load_origin
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry, read_manifest, verify_files
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Arrays, Batch, Sentence
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import BANNED_BIAS, END, START
from translate_trt.train.model import Transformer, pad
from translate_trt.train.search import Ensemble

Array = NDArray[np.float32]
Tensors = dict[str, Array]

#: Number of decoding steps to compare; later steps read the KV cache of earlier ones.
STEPS = 4


@dataclass(frozen=True)
class Tolerance:
    """Tolerance of a tensor.

    Attributes:
        largest: Maximum difference, relative to the largest magnitude of the tensor.
        reason: Origin of the number.
    """

    largest: float
    reason: str


#: Tolerances per precision. The model of scripts/multi30k.sh stays far below them.
TOLERANCES = {
    "fp32": Tolerance(1e-4, "another order of summation"),
    "fp16": Tolerance(10 * 2**-11, "ten roundings to FP16's 11 bits"),
    "bf16": Tolerance(10 * 2**-8, "ten roundings to BF16's 8 bits"),
    # A scale of weights may be twice that of their largest magnitude, because of a sum of two.
    "int8": Tolerance(30 * 2**-8, "ten roundings of activations to 8 bits and of weights to 7"),
}


@dataclass(frozen=True)
class Drift:
    """Difference of one tensor from PyTorch's, over all lines, positions and steps.

    Attributes:
        tensor: Name of the tensor.
        absolute: Largest absolute difference; None if the tensor was fused away.
        relative: `absolute` divided by the largest magnitude of PyTorch's tensor.
    """

    tensor: str
    absolute: float | None
    relative: float | None


@dataclass(frozen=True)
class LayerReport:
    """Differences of a target's tensors.

    Attributes:
        target: Name of the target.
        precision: Precision of the target.
        drifts: Differences in the order of computation.
        first: Name of the first tensor beyond the tolerance, or None.
        emulated: Whether the target is an engine, whose graph ran on the CPU.
    """

    target: str
    precision: str
    drifts: tuple[Drift, ...]
    first: str | None
    emulated: bool

    @classmethod
    def of(cls, entry: TargetEntry, reference: Tensors, found: Tensors) -> LayerReport:
        """Compare the tensors of a target with PyTorch's."""
        drifts = tuple(_drift(name, x, found.get(name)) for name, x in reference.items())
        limit = TOLERANCES[entry.precision].largest
        beyond = (d.tensor for d in drifts if d.relative is not None and d.relative > limit)
        return cls(entry.name, entry.precision, drifts, next(beyond, None), has_engines(entry))


def _drift(name: str, reference: Array, found: Array | None) -> Drift:
    if found is None:
        return Drift(name, None, None)
    # Logits of banned tokens would hide differences between the others, which are much smaller.
    usual = ~(reference <= BANNED_BIAS / 2)
    # NaN in only one of the tensors counts as an infinite difference.
    difference = np.nan_to_num(np.abs(reference - found), nan=math.inf)
    absolute = float(difference.max(where=usual, initial=0.0))
    largest = float(np.abs(reference).max(where=usual, initial=0.0))
    return Drift(name, absolute, absolute / largest if largest else absolute)


def compare_layers(
    bundle: Path,
    checkpoint: Checkpoint,
    source: Sequence[str],
    targets: Sequence[str] | None = None,
    threads: int | None = None,
    others: Sequence[Checkpoint] = (),
) -> list[LayerReport]:
    """Run a few lines through PyTorch and every target, and compare the output of every layer.

    Args:
        bundle: Directory of the bundle.
        checkpoint: Checkpoint that the bundle was exported from, or its ensemble's first member.
        source: Lines to run, as a single batch.
        targets: Names of targets; None for all.
        threads: CPU threads of the targets. PyTorch's threads are not changed.
        others: Further members of an ensemble, in the order of the export.

    Raises:
        BundleError: The bundle is damaged, does not belong to the checkpoint, or has no taps.
        InputError: Every line is empty.
    """
    manifest = read_manifest(bundle)
    model = load_origin(bundle, manifest, [checkpoint, *others])
    names = list(manifest.targets) if targets is None else list(targets)
    for name in names:
        verify_files(bundle, manifest, name)
    tokenizer = Tokenizer(*(manifest.tokenizer[s].locate(bundle) for s in ("source", "target")))
    limit = manifest.limits.max_source_length - 1
    encoded = [tokens[:limit] for tokens in tokenizer.encode_source_batch(source)]
    sources = [tokens for tokens in encoded if tokens]
    if not sources:
        raise InputError("the lines of --source are all empty; --layers needs some text.")
    reference = _pytorch(model, sources)
    return [
        _run_target(bundle, manifest, manifest.target(name), sources, reference, threads)
        for name in names
    ]


# ---- PyTorch ----


@dataclass(frozen=True)
class _Reference:
    """Tensors and tokens of PyTorch.

    Attributes:
        tensors: Tensors by name: [positions, features] of the encoder, without padding, and
            [steps, N, features] of the decoder.
        forced: Decoded tokens [N, steps - 1].
    """

    tensors: Tensors
    forced: NDArray[np.int64]


def _pytorch(model: Transformer | Ensemble, sources: list[list[int]]) -> _Reference:
    ids, lengths = pad([[*tokens, END] for tokens in sources])
    steps: list[Tensors] = []
    chosen = [torch.full((len(sources),), START)]
    tensors: Tensors = {}
    caches, recorded = [], []
    with torch.inference_mode(), ExitStack() as hooks:
        for number, (prefix, member) in enumerate(labelled(model)):
            with recording(member, "encoder") as found:
                cache = member.start_cache(ids, lengths)
            tensors |= {f"{prefix}{name}": x.numpy() for name, x in found.items()}
            label = member_label(number) if prefix else ""
            # The graph has one pair for layers with the same weights.
            for index, pair in zip(member.config.decoder_weights, cache.cross, strict=True):
                for kind, x in zip(("key", "value"), pair, strict=True):
                    tensors[f"cross_{kind}_{label}{index}"] = _positions_first(x.numpy())
            caches.append(cache)
            recorded.append(hooks.enter_context(recording(member, "decoder")))
        for _ in range(STEPS):
            step: Tensors = {}
            probabilities = []
            for (prefix, member), cache, found in zip(
                labelled(model), caches, recorded, strict=True
            ):
                logits = member.decode_next(chosen[-1], cache)
                for name, x in found.items():
                    step[f"{prefix}{name}"] = x.reshape(len(sources), -1).numpy()
                step[f"{prefix}{LOGITS}"] = logits.numpy()
                probabilities.append(logits.softmax(-1))
            steps.append(step)
            # The end token is banned, so that every line reaches the last step.
            mean = torch.stack(probabilities).mean(0)
            chosen.append(mean.index_fill(1, torch.tensor(END), -math.inf).argmax(-1))
    forced = torch.stack(chosen[1:STEPS], dim=1).numpy()
    return _Reference({**_unpadded(tensors, sources), **_stacked(steps)}, forced)


def _positions_first(x: Array) -> Array:
    """Transpose keys or values [N, H, S, D] to [N, S, H, D]."""
    return np.moveaxis(x, 1, 2)


def _unpadded(tensors: Tensors, sources: list[list[int]]) -> Tensors:
    """Flatten [N, S, ...] to [positions, ...], without padding."""
    lengths = np.array([len(tokens) + 1 for tokens in sources])
    real = np.arange(lengths.max()) < lengths[:, None]  # [N, S]
    return {name: x[real] for name, x in tensors.items()}


def _stacked(steps: list[Tensors]) -> Tensors:
    """Stack the tensors [N, ...] of each step to [steps, N, ...]."""
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


# ---- a target ----


def _run_target(
    bundle: Path,
    manifest: Manifest,
    entry: TargetEntry,
    sources: list[list[int]],
    reference: _Reference,
    threads: int | None,
) -> LayerReport:
    model = manifest.model
    contract = emulated_contract(entry.contract)
    sessions = {
        name: _Session(file.locate(bundle), list(reference.tensors), threads)
        for name, file in graphs_of(entry).items()
    }
    graphs = _RecordedGraphs(sessions)
    options = SearchOptions(beam_size=contract.beams or 1, max_length=STEPS)
    sentences = [
        Sentence(tokens, forced.tolist(), options)
        for tokens, forced in zip(sources, reference.forced, strict=True)
    ]
    batch = Batch(graphs, contract, sentences, model.start_token, model.end_token)
    for _ in range(reference.forced.shape[1] + 1):
        batch.step()
    found = {**_unpadded(graphs.encoded, sources), **_stacked(graphs.steps)}
    if LOGITS in found:  # int8 logits have padding columns
        found[LOGITS] = found[LOGITS][..., : model.vocabulary_size]
    return LayerReport.of(entry, reference.tensors, found)


class _Session:
    """ONNX Runtime session of a graph whose taps are additional outputs."""

    def __init__(self, path: Path, names: Sequence[str], threads: int | None) -> None:
        model = load_graph(path)
        self.taps = _expose(model.graph, names)
        if not self.taps:
            raise BundleError(
                f"{path} has no named layers. Export the bundle again to compare layers."
            )
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry(*EXACT_INT8)
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph and return all outputs by name; other inputs are ignored."""
        names = [value.name for value in self._session.get_outputs()]
        needed = {value.name: inputs[value.name] for value in self._session.get_inputs()}
        return dict(zip(names, self._session.run(names, needed), strict=True))


def _expose(graph: ir.Graph, names: Sequence[str]) -> dict[str, str]:
    """Make values float32 outputs of the graph; return the output names by value name."""
    wanted = set(names)
    taps = {str(value.name): str(value.name) for value in graph.outputs if value.name in wanted}
    for node in list(graph):
        for value in node.outputs:
            if value.name in wanted and value.name not in taps:
                cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
                output = cast.outputs[0]
                output.name, output.shape = f"{value.name}.tap", value.shape
                output.type = ir.TensorType(ir.DataType.FLOAT)
                graph.append(cast)
                graph.outputs.append(output)
                taps[str(value.name)] = output.name
    return taps


class _RecordedGraphs:
    """`Graphs` that record the taps of each run, for the first beam.

    Forced tokens keep the search on that beam.
    """

    def __init__(self, sessions: Mapping[str, _Session]) -> None:
        self._sessions = sessions
        self.encoded: Tensors = {}
        self.steps: list[Tensors] = []

    def encode(self, inputs: Arrays) -> Arrays:
        """See `Graphs`."""
        session = self._sessions["encoder"]
        found = session.run(inputs)
        for name, output in session.taps.items():
            value = found[output]
            self.encoded[name] = value if value.ndim == 3 else _positions_first(value)
        return found

    def step(self, inputs: Arrays) -> Arrays:
        """See `Graphs`."""
        session = self._sessions["step"]
        found = session.run(inputs)
        self.steps.append({name: found[x][:, 0] for name, x in session.taps.items()})
        return found
