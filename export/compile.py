"""Checkpoint to bundle: trace, set the precision, check, write, describe."""

from __future__ import annotations

import importlib.metadata
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from translate_trt.export.graphs import EncoderGraph, StepGraph, graph_shape
from translate_trt.export.precision import PRECISIONS
from translate_trt.export.trace import check, contract, trace
from translate_trt.runtime.bundle import (
    FORMAT_VERSION,
    FileEntry,
    Limits,
    Manifest,
    ModelDescription,
    TargetEntry,
    hash_file,
    write_manifest,
)
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.files import new_directory
from translate_trt.runtime.version import version
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END, PAD, START, UNKNOWN, ModelConfig
from translate_trt.train.model import Transformer

log = logging.getLogger("translate_trt")

TOKENIZER = "shared.spm"


@dataclass(frozen=True)
class Target:
    """What one entry of a bundle is compiled for."""

    backend: str
    precision: str


#: By the name that `--target` takes.
TARGETS = {
    "onnx-fp32": Target("onnxruntime", "fp32"),
    "onnx-int8": Target("onnxruntime", "int8"),
}


@dataclass(frozen=True)
class BuildOptions:
    """How to compile.

    Raises:
        OptionError: a value is out of range.
    """

    targets: tuple[str, ...] = ("onnx-fp32",)  # the first is the bundle's default
    # Tokens with the end symbol. Sinusoidal positions allow any; a model is at its best up to the
    # lengths it was trained on, so None takes the training's --max-length.
    max_source_length: int | None = None
    max_target_length: int | None = None  # None: max_source_length + 50
    attention: bool = False  # the step graph also returns cross-attention weights

    def __post_init__(self) -> None:
        if not self.targets:
            raise OptionError(f"no target; choose from {', '.join(TARGETS)}.")
        for name in self.targets:
            if name not in TARGETS:
                raise OptionError(f"no target {name!r}; choose from {', '.join(TARGETS)}.")
        if len(set(self.targets)) < len(self.targets):
            raise OptionError(f"a target is named twice in {', '.join(self.targets)}.")
        if self.max_source_length is not None and self.max_source_length < 2:
            raise OptionError("max_source_length must be at least 2: one token, the end symbol.")

    def limits(self, trained_length: int, longest: int | None) -> Limits:
        """The lengths to compile for.

        Args:
            trained_length: of the longest sentence in training.
            longest: the model has positions for so many tokens; None: for any.

        Raises:
            OptionError: the target limit leaves no room for the default maximum, source + 50, or
                the model has too few positions.
        """
        default = trained_length if longest is None else min(trained_length, longest - 50)
        source = self.max_source_length or max(2, default)
        target = self.max_target_length or source + 50
        if longest is not None and target > longest:
            raise OptionError(
                f"a target length of {target} does not fit the model: it has learned positions "
                f"for {longest} tokens. Lower max_source_length to {longest - 50} or less."
            )
        if target < source + 50:
            raise OptionError(
                f"max_target_length {target} is less than max_source_length {source} + 50, "
                "which is how long a translation may get by default; raise it."
            )
        return Limits(source, target)


def compile_bundle(
    checkpoint: Checkpoint, out: Path, options: BuildOptions, force: bool = False
) -> Manifest:
    """Compile a checkpoint for every target and write the bundle.

    Args:
        checkpoint: the trained model.
        out: directory of the bundle; it appears complete or not at all.
        options: how to compile.
        force: replace a bundle that is there.

    Raises:
        CheckpointError: the checkpoint is damaged.
        OutputError: `out` exists, or the disk is full.
    """
    limits = options.limits(int(checkpoint.train.get("max_length", 256)), checkpoint.model.longest)
    with new_directory(out, force) as directory:
        model = checkpoint.load_model()
        traced = trace_graphs(model, limits, options.attention)
        shutil.copyfile(checkpoint.tokenizer, directory / TOKENIZER)
        tokenizer = hash_file(directory, TOKENIZER)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            created_by=f"translate-trt {version()}",
            source_language=checkpoint.source_language,
            target_language=checkpoint.target_language,
            model=describe(model),
            limits=limits,
            search={"beam_size": 4, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
            tokenizer={"source": tokenizer, "target": tokenizer},
            targets={
                name: _write_target(name, traced, directory, options) for name in options.targets
            },
        )
        write_manifest(directory, manifest)
    return manifest


def trace_graphs(model: Transformer, limits: Limits, attention: bool) -> dict[str, onnx.ModelProto]:
    """Both graphs in float32, by name, checked."""
    shape = graph_shape(model.config, attention)
    modules = {
        "encoder": EncoderGraph(model, limits.max_source_length),
        "step": StepGraph(model, limits.max_target_length, attention),
    }
    traced = {}
    for name, (inputs, outputs) in contract(shape).items():
        log.info("tracing the %s graph", name)
        traced[name] = check(trace(modules[name], inputs, outputs, name))
    return traced


def _write_target(
    name: str, traced: dict[str, onnx.ModelProto], directory: Path, options: BuildOptions
) -> TargetEntry:
    target = TARGETS[name]
    files: dict[str, FileEntry] = {}
    (directory / "targets" / name).mkdir(parents=True)
    for role, proto in traced.items():
        log.info("%s: the %s graph", name, role)
        model = ir.from_proto(proto)
        PRECISIONS[target.precision](model)
        path = f"targets/{name}/{role}.onnx"
        onnx.save(check(model), directory / path)
        files[role] = hash_file(directory, path)
    packages = ("torch", "onnx", "onnx-ir", "onnxscript")
    return TargetEntry(
        name=name,
        backend=target.backend,
        precision=target.precision,
        files=files,
        features=("attention",) if options.attention else (),
        builder={package: importlib.metadata.version(package) for package in packages},
    )


def describe(model: Transformer) -> ModelDescription:
    """What the manifest says of a model."""
    config: ModelConfig = model.config
    return ModelDescription(
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        heads=config.heads,
        key_size=config.d_k,
        value_size=config.d_v,
        model_size=config.d_model,
        feed_forward_size=config.d_ff,
        vocabulary_size=config.vocabulary_size,
        start_token=START,
        end_token=END,
        pad_token=PAD,
        unknown_token=UNKNOWN,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
