"""Where a target departs from PyTorch: the same tensors of both, layer by layer.

The checkpoint encodes a few lines and chooses a few tokens for each; the target's graphs get the
same lines and are forced to the same tokens, so that one other choice does not spoil what follows.
Graphs of 16 bits round at every operator (`passes/emulate`), on whatever machine this runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from translate_trt.export.residual_stream import LOGITS
from translate_trt.export.taps import recording
from translate_trt.export.verify.cpu_emulation import (
    emulated_contract,
    graphs_of,
    has_engines,
    load_graph,
)
from translate_trt.export.verify.parity import check_origin
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry, read_manifest, verify_files
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Arrays, Batch, Sentence
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END, START
from translate_trt.train.model import Transformer, pad

Array = NDArray[np.float32]
Tensors = dict[str, Array]

#: Decoding steps that are compared: enough to read back what earlier steps put into the caches.
STEPS = 4


@dataclass(frozen=True)
class Tolerance:
    """How far a tensor may depart, as a share of its largest magnitude.

    Attributes:
        largest: relative difference.
        reason: where the number comes from.
    """

    largest: float
    reason: str


#: By precision. Sound models stay far below: `verify --layers` of what scripts/multi30k.sh trains.
TOLERANCES = {
    "fp32": Tolerance(1e-4, "sums in another order"),
    "fp16": Tolerance(10 * 2**-11, "ten roundings to FP16's 11 bits"),
    "bf16": Tolerance(10 * 2**-8, "ten roundings to BF16's 8 bits"),
    "int8": Tolerance(20 * 2**-8, "ten roundings of activations and of weights to 8 bits"),
}


@dataclass(frozen=True)
class Drift:
    """One tensor of a target against PyTorch's, over all lines, positions and steps.

    Attributes:
        tensor: its name.
        absolute: the largest difference; None: the tensor is not in the graph, it was fused away.
        relative: that, divided by the largest magnitude of PyTorch's.
    """

    tensor: str
    absolute: float | None
    relative: float | None


@dataclass(frozen=True)
class LayerReport:
    """How a target's tensors depart.

    Attributes:
        target: its name.
        precision: of it.
        drifts: in the order of computation.
        first: name of the first that departs further than the precision's tolerance, or None.
        stand_in: the target is an engine, and what ran is its graph.
    """

    target: str
    precision: str
    drifts: tuple[Drift, ...]
    first: str | None
    stand_in: bool

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
    # What is no number in one and is in the other departs infinitely far.
    difference = np.nan_to_num(np.abs(reference - found), nan=math.inf)
    absolute = float(difference.max())
    largest = float(np.abs(reference).max())
    return Drift(name, absolute, absolute / largest if largest else absolute)


def compare_layers(
    bundle: Path,
    checkpoint: Checkpoint,
    source: Sequence[str],
    targets: Sequence[str] | None = None,
    threads: int | None = None,
) -> list[LayerReport]:
    """Run a few lines through PyTorch and every target, and compare what each layer makes of them.

    Args:
        bundle: directory of the bundle.
        checkpoint: what it was compiled from.
        source: the lines; a few are enough, and all go into one batch.
        targets: None takes all.
        threads: for the targets; PyTorch's are the caller's.

    Raises:
        BundleError: the bundle is damaged, not of this checkpoint, or its graphs name no layers.
        InputError: no line has a token.
    """
    manifest = read_manifest(bundle)
    model = checkpoint.load_model()
    check_origin(bundle, manifest, checkpoint, model)
    names = list(manifest.targets) if targets is None else list(targets)
    for name in names:
        verify_files(bundle, manifest, name)
    tokenizer = Tokenizer(*(manifest.tokenizer[s].locate(bundle) for s in ("source", "target")))
    limit = manifest.limits.max_source_length - 1
    encoded = [tokens[:limit] for tokens in tokenizer.encode_source_batch(source)]
    sources = [tokens for tokens in encoded if tokens]
    if not sources:
        raise InputError("none of the lines has a token; give verify --layers some text.")
    reference = _pytorch(model, sources)
    return [
        _run_target(bundle, manifest, manifest.target(name), sources, reference, threads)
        for name in names
    ]


# ---- PyTorch ----


@dataclass(frozen=True)
class _Reference:
    """What PyTorch computes.

    Attributes:
        tensors: by name; what the encoder makes as [positions, features], padding left out, what
            the decoder makes as [steps, N, features].
        forced: [N, steps - 1] tokens that the lines were continued with.
    """

    tensors: Tensors
    forced: NDArray[np.int64]


def _pytorch(model: Transformer, sources: list[list[int]]) -> _Reference:
    ids, lengths = pad([[*tokens, END] for tokens in sources])
    steps: list[Tensors] = []
    chosen = [torch.full((len(sources),), START)]
    with torch.inference_mode():
        with recording(model, "encoder") as found:
            cache = model.start_cache(ids, lengths)
        tensors = {name: x.numpy() for name, x in found.items()}
        for index, pair in enumerate(cache.cross):
            for kind, x in zip(("key", "value"), pair, strict=True):
                tensors[f"cross_{kind}_{index}"] = _positions_first(x.numpy())
        with recording(model, "decoder") as found:
            for _ in range(STEPS):
                logits = model.decode_next(chosen[-1], cache)
                rows = {name: x.reshape(len(sources), -1).numpy() for name, x in found.items()}
                steps.append({**rows, LOGITS: logits.numpy()})
                # The end symbol is left out: every line is to go on to the last step.
                chosen.append(logits.index_fill(1, torch.tensor(END), -math.inf).argmax(-1))
    forced = torch.stack(chosen[1:STEPS], dim=1).numpy()
    return _Reference({**_unpadded(tensors, sources), **_stacked(steps)}, forced)


def _positions_first(x: Array) -> Array:
    """Keys or values [N, H, S, D] as [N, S, H, D]."""
    return np.moveaxis(x, 1, 2)


def _unpadded(tensors: Tensors, sources: list[list[int]]) -> Tensors:
    """[N, S, ...] as [positions, ...], without those behind a line's end symbol."""
    lengths = np.array([len(tokens) + 1 for tokens in sources])
    real = np.arange(lengths.max()) < lengths[:, None]  # [N, S]
    return {name: x[real] for name, x in tensors.items()}


def _stacked(steps: list[Tensors]) -> Tensors:
    """Each step's tensors [N, ...] as [steps, N, ...]."""
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
    if LOGITS in found:  # 8-bit ones have columns that only fill up
        found[LOGITS] = found[LOGITS][..., : model.vocabulary_size]
    return LayerReport.of(entry, reference.tensors, found)


class _Session:
    """A graph in ONNX Runtime whose observed tensors are outputs as well."""

    def __init__(self, path: Path, names: Sequence[str], threads: int | None) -> None:
        model = load_graph(path)
        self.observed = _expose(model.graph, names)
        if not self.observed:
            raise BundleError(
                f"{path} names none of its layers: it was made by an older version. "
                "Export the bundle again to compare layers."
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
        """All outputs by name; of the inputs, those the graph has."""
        names = [value.name for value in self._session.get_outputs()]
        needed = {value.name: inputs[value.name] for value in self._session.get_inputs()}
        return dict(zip(names, self._session.run(names, needed), strict=True))


def _expose(graph: ir.Graph, names: Sequence[str]) -> dict[str, str]:
    """Make values outputs, as float32; returns the output's name by the value's."""
    wanted = set(names)
    observed = {str(value.name): str(value.name) for value in graph.outputs if value.name in wanted}
    for node in list(graph):
        for value in node.outputs:
            if value.name in wanted and value.name not in observed:
                cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
                output = cast.outputs[0]
                output.name, output.shape = f"{value.name}.observed", value.shape
                output.type = ir.TensorType(ir.DataType.FLOAT)
                graph.append(cast)
                graph.outputs.append(output)
                observed[str(value.name)] = output.name
    return observed


class _RecordedGraphs:
    """`Graphs` that keep the observed tensors of each run; of beams, the first alone.

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
        for name, output in session.observed.items():
            value = found[output]
            self.encoded[name] = value if value.ndim == 3 else _positions_first(value)
        return found

    def step(self, inputs: Arrays) -> Arrays:
        """See `Graphs`."""
        session = self._sessions["step"]
        found = session.run(inputs)
        self.steps.append({name: found[x][:, 0] for name, x in session.observed.items()})
        return found
