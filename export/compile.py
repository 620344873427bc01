"""Compile a checkpoint into a bundle: trace, run passes, check, write, describe."""

from __future__ import annotations

import importlib.metadata
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
import onnx_ir as ir
from torch import nn

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.contract import GraphLayout, ensemble_contract
from translate_trt.export.dump import Dump
from translate_trt.export.engines.builder import build_engine, check_gpus
from translate_trt.export.engines.cache import Engine
from translate_trt.export.engines.network import Graph, load_builder
from translate_trt.export.engines.options import change_sizes
from translate_trt.export.ensemble import (
    EnsembleEncoderGraph,
    EnsembleStepGraph,
    labelled,
    members_of,
    repeat_cross_attention,
    share_tables,
)
from translate_trt.export.fused_ops.matching import add_functions
from translate_trt.export.graphs import EncoderGraph, StepGraph
from translate_trt.export.passes.base import NO_BOUNDS
from translate_trt.export.passes.bound import Bound
from translate_trt.export.passes.expectations import ModelShape
from translate_trt.export.passes.pipeline import Applied, Report, run_passes
from translate_trt.export.plans.build import build_plans, check_options, encoder_profiles
from translate_trt.export.roles import EMBEDDING, RESIDUAL, set_input_magnitudes, set_roles
from translate_trt.export.taps import tapped
from translate_trt.export.targets import TARGETS
from translate_trt.export.trace import check, declare, trace
from translate_trt.runtime.backends.engines import EngineRecord, Profile, system_name
from translate_trt.runtime.backends.packages import CUDA
from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.contract import Contract, ShortlistForm, max_beams
from translate_trt.runtime.bundle.manifest import (
    BUNDLE,
    FORMAT_VERSION,
    FileEntry,
    Limits,
    Manifest,
    MemberDescription,
    ModelDescription,
    TargetEntry,
    hash_file,
    write_manifest,
)
from translate_trt.runtime.errors import CheckpointError, OptionError
from translate_trt.runtime.io.atomic_files import new_directory
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.version import version
from translate_trt.train.activation_scales import matmul_weights
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END, PAD, START, TOKENIZERS, UNKNOWN, ModelConfig
from translate_trt.train.evaluation.validation import check_same_vocabulary
from translate_trt.train.model import Transformer
from translate_trt.train.search import Ensemble
from translate_trt.train.shortlist.table import Shortlist, tokenizer_hash

log = logging.getLogger("translate_trt")

#: File of the tokenizer that source and target share.
TOKENIZER = "shared.spm"

# Decoding defaults of models that have none of their own: the paper's (section 6.1).
_SEARCH = {"beam_size": 4, "length_penalty": 0.6, "length_penalty_form": "gnmt"}

#: Role of the graph that each engine is built from, by the role of the engine.
GRAPH_ROLES = {"encoder": "encoder_graph", "step": "step_graph"}


@dataclass(frozen=True)
class Compiled:
    """Result of a compilation.

    Attributes:
        manifest: Manifest of the bundle.
        reports: Reports of the passes on both graphs, by target.
    """

    manifest: Manifest
    reports: dict[str, list[Report]]


def compile_bundle(
    checkpoint: Checkpoint,
    out: Path,
    options: BuildOptions,
    force: bool = False,
    others: Sequence[Checkpoint] = (),
) -> Compiled:
    """Compile a checkpoint for every target and write the bundle.

    Args:
        checkpoint: The trained model.
        out: Directory of the bundle; it appears complete or not at all.
        options: Options of the build.
        force: Replace an existing bundle.
        others: Further members of an ensemble, whose first is `checkpoint`. The bundle has the
            decoding defaults of the first.

    Raises:
        CheckpointError: The checkpoint is damaged, or the members cannot form an ensemble.
        OutputError: `out` exists, overlaps an input, or the disk is full.
        TranslateTrtError: The model cannot be compiled for a target; the message says why.
    """
    checkpoints = [checkpoint, *others]
    if others:
        check_members(checkpoints)
        options = options.for_ensemble()
    else:
        options = options.for_model(checkpoint.shortlist)
    limits = _limits(checkpoints, options)
    own_heads = None if others else checkpoint.alignment_heads
    if own_heads is not None and Tokenizer(*checkpoint.tokenizers).writes_trees:
        options = replace(options, attention=True)  # which places the words in trees
    chosen = options.heads or own_heads or LAST_LAYER
    heads, *_ = [chosen.within(one.model.decoder_layers, one.model.heads) for one in checkpoints]
    _check_targets(options, limits, checkpoints)
    shortlist = None
    if options.shortlist is not None:
        shortlist = Shortlist.load(options.shortlist, tokenizer_hash(*checkpoint.tokenizers))
    inputs = [*(one.path for one in checkpoints), options.shortlist]
    if options.dump is not None:
        check_apart(options.dump, [*inputs, out])
        inputs.append(options.dump)
    with new_directory(out, force, kind=BUNDLE, inputs=inputs) as directory:
        models = [one.load_model() for one in checkpoints]
        model = Ensemble(models) if others else models[0]
        scales = _load_scales(checkpoints, model)
        compiler = Compiler(model, limits, options, shortlist, scales, chosen)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            created_by=f"translate-trt {version()}",
            source_language=checkpoint.source_language,
            target_language=checkpoint.target_language,
            model=describe(models[0]),
            limits=limits,
            prompt=checkpoint.prompt,
            search=_SEARCH | checkpoint.search,
            tokenizer=_copy_tokenizers(checkpoint, directory),
            targets={name: compiler.write(name, directory) for name in options.targets},
            weights_sha256=checkpoint.weights_sha256,
            attention=heads if options.attention else None,
            members=describe_members(checkpoints, models) if others else (),
            term_annotation=checkpoint.term_annotation,
        )
        write_manifest(directory, manifest)
    return Compiled(manifest, compiler.reports)


def check_members(checkpoints: Sequence[Checkpoint]) -> None:
    """Check, before any weights are loaded, whether checkpoints can form an ensemble.

    Raises:
        CheckpointError: The vocabularies or prompts differ, only some members see the source's end
            symbol, or two members are the same model.
    """
    check_same_vocabulary(checkpoints)
    first, *others = checkpoints
    for other in others:
        if other.model.source_end != first.model.source_end:
            seeing, blind = (first, other) if first.model.source_end else (other, first)
            raise CheckpointError(
                f"the decoder of {seeing.path} attends to the source's end symbol and that of "
                f"{blind.path} does not, so they cannot share a source mask. Make an ensemble of "
                "models that agree on it."
            )
    paths: dict[str, Path] = {}
    for one in checkpoints:
        weights = one.weights_sha256
        if weights in paths:
            raise CheckpointError(
                f"{paths[weights]} and {one.path} are the same model, which would only count twice "
                "in the mean. Name each model once."
            )
        paths[weights] = one.path


def _limits(checkpoints: Sequence[Checkpoint], options: BuildOptions) -> Limits:
    """Largest lengths that all members of an ensemble can take.

    Raises:
        OptionError: The prompt of the first does not fit.
    """
    first = checkpoints[0]
    limits = options.limits(
        min(int(one.train.get("max_length", 256)) for one in checkpoints),
        min((x for one in checkpoints if (x := one.model.longest) is not None), default=None),
        first.search_options().max_extra_length,
    )
    if limits.max_source_length < first.prompt.source_length + 2:
        raise OptionError(
            f"max_source_length is {limits.max_source_length}; with the tokens that this model "
            f"needs before a text it must be at least {first.prompt.source_length + 2}."
        )
    return limits


def _check_targets(
    options: BuildOptions, limits: Limits, checkpoints: Sequence[Checkpoint]
) -> None:
    """Refuse targets that cannot be built here, before minutes of work.

    Raises:
        TranslateTrtError: A package, a GPU or an option does not suit a target.
    """
    targets = {name: TARGETS[name] for name in options.targets}
    vocabulary_size = checkpoints[0].model.vocabulary_size
    if any(target.static for target in targets.values()):
        options.engines.step_profiles(limits, options.beam_size)
        if options.beam_size > max_beams(vocabulary_size):
            raise OptionError(
                f"beam_size {options.beam_size} is too large for a vocabulary of {vocabulary_size} "
                f"tokens; at most {max_beams(vocabulary_size)}."
            )
    for name, target in targets.items():
        if target.backend == CUDA:
            check_options(name, options.engines, options.all_options)
        if target.package is not None:
            options.engines.check_package(target.package)
            check_gpus(name, target.package, target.precision, options.engines)
            load_builder(target.package)


def _load_scales(
    checkpoints: Sequence[Checkpoint], model: Transformer | Ensemble
) -> dict[str, float]:
    """Load the recorded activation scales of all members, by the names that `Compiler` takes.

    Raises:
        CheckpointError: Some members of an ensemble have them, and others have none.
    """
    found = {
        prefix: one.load_activation_scales(member)
        for one, (prefix, member) in zip(checkpoints, labelled(model), strict=True)
    }
    lacking = [one for one, scales in zip(checkpoints, found.values(), strict=True) if not scales]
    if lacking and len(lacking) < len(checkpoints):
        recorded = next(one for one in checkpoints if one not in lacking)
        raise CheckpointError(
            f"{recorded.path} has recorded activation scales and {lacking[0].path} has none. "
            "Import all members with --recorded-activation-scales, or all without."
        )
    return {
        f"{prefix}{name}": scale
        for prefix, scales in found.items()
        for name, scale in (scales or {}).items()
    }


def _copy_tokenizers(checkpoint: Checkpoint, bundle: Path) -> dict[str, FileEntry]:
    """Copy the tokenizers into the bundle; return their manifest entries by side."""
    source, target = checkpoint.tokenizers
    names = (TOKENIZER, TOKENIZER) if source == target else TOKENIZERS
    entries = {}
    for side, file, name in zip(("source", "target"), (source, target), names, strict=True):
        shutil.copyfile(file, bundle / name)
        entries[side] = hash_file(bundle, name)
    return entries


class Compiler:
    """Compile one model for one target after another; graphs that targets share are traced once.

    Args:
        model: The model, or an ensemble.
        limits: Largest lengths of source and target.
        options: Options of the build.
        shortlist: Shortlist table, for targets with a shortlist.
        activation_scales: Recorded largest magnitude of the input of each matmul, by the names of
            `matmul_weights`, for int8 targets. Names of an ensemble's matmuls begin with the label
            of the member (`labelled`). Default: scales per row.
        heads: Cross-attention that the step graphs return, if the options ask for it; of an
            ensemble, that of every member, averaged.

    Attributes:
        reports: Reports of the passes on both graphs, by target.
    """

    def __init__(
        self,
        model: Transformer | Ensemble,
        limits: Limits,
        options: BuildOptions,
        shortlist: Shortlist | None = None,
        activation_scales: Mapping[str, float] | None = None,
        heads: AttentionHeads = LAST_LAYER,
    ) -> None:
        self._model, self._limits, self._options = model, limits, options
        self._configs = [member.config for member in members_of(model)]
        self._shortlist = shortlist
        self._activation_scales = activation_scales or {}
        self._heads = heads
        self._traced: dict[tuple[Contract, int], dict[str, ir.Model]] = {}
        self._dumps = {
            name: Dump(options.dump / name) for name in options.targets if options.dump is not None
        }
        self.reports: dict[str, list[Report]] = {}

    def write(self, name: str, directory: Path) -> TargetEntry:
        """Compile for the target of that name; write its files into the directory of a bundle."""
        target = TARGETS[name]
        folder = directory / "targets" / name
        folder.mkdir(parents=True)
        write = self._write_plans if target.backend == CUDA else self._write_graphs
        files, records = write(name, folder)
        entries = {
            role: hash_file(directory, path.relative_to(directory).as_posix())
            for role, path in files.items()
        }
        packages = ["torch", "onnx", "onnx-ir", "onnxscript"]
        if target.backend == CUDA:
            packages.append("triton")
        return TargetEntry(
            name=name,
            backend=target.backend,
            precision=target.precision,
            files=entries,
            contract=self.contract(name),
            engine=records or None,
            builder={package: importlib.metadata.version(package) for package in packages}
            | {
                record["package"]: record["version"]
                for record in records.values()
                if record["package"] != CUDA
            },
        )

    def _write_graphs(self, name: str, folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
        """Write the graphs of a target, and engines; return the files and records by role."""
        target, contract = TARGETS[name], self.contract(name)
        files, records = {}, {}
        for role, model in self.graphs(name).items():
            graph_role = role if target.package is None else GRAPH_ROLES[role]
            files[graph_role] = path = folder / f"{graph_role}.onnx"
            onnx.save(check(model), path)
            if target.package is not None:
                graph = Graph(role, path, *contract.graphs[role])
                engine = self._engine(target.package, graph)
                files[role] = folder / f"{role}.engine"
                files[role].write_bytes(engine.plan)
                files[f"{role}_log"] = folder / f"{role}.log"
                files[f"{role}_log"].write_text(engine.log, encoding="utf-8")
                records[role] = engine.record.to_json()
            elif target.static:
                records[role] = _graph_record(target.backend, self._profiles(role)).to_json()
        return files, records

    def _write_plans(self, name: str, folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
        """Write the plans of a target, their weights and cubins; see `_write_graphs`."""
        graphs = {}
        with tempfile.TemporaryDirectory() as scratch:
            for role, model in self.graphs(name).items():
                path = Path(scratch) / f"{role}.onnx"
                onnx.save(check(model), path)
                graphs[role] = Graph(role, path, *self.contract(name).graphs[role])
            profiles = {role: self._profiles(role) for role in graphs}
            profiles["encoder"] = encoder_profiles(profiles["encoder"])
            plans = build_plans(name, graphs, profiles, self._options.engines)
        records = {role: record.to_json() for role, record in plans.records.items()}
        return plans.write(folder), records

    def _engine(self, package: str, graph: Graph) -> Engine:
        profiles = self._profiles(graph.name)
        return build_engine(load_builder(package), graph, profiles, self._options.engines)

    def _profiles(self, role: str) -> tuple[Profile, ...]:
        """Optimization profiles of the engine of a role."""
        options = self._options.engines
        if role == "encoder":
            return options.encoder_profiles(self._limits)
        caches = any(not config.is_recurrent for config in self._configs)
        beams = self._options.beam_size
        changes = None
        if self._options.all_options:
            changes = change_sizes(self._limits, beams, self._configs[0].vocabulary_size)
        return options.step_profiles(self._limits, beams, caches, changes)

    def contract(self, name: str) -> Contract:
        """Contract of the graphs of the target of that name."""
        layout = self.layout(name)
        return ensemble_contract(self._configs, self._options.attention, layout)

    def layout(self, name: str) -> GraphLayout:
        """Layout of the graphs of the target of that name."""
        options = self._options
        shortlist = None
        if self._shortlist is not None:
            shortlist = ShortlistForm(*(a.shape[-1] for a in (
                self._shortlist.frequent, self._shortlist.translations
            )))  # fmt: skip
        return TARGETS[name].layout(
            options.beam_size, self._limits.max_target_length, shortlist, options.all_options
        )

    def graphs(self, name: str) -> dict[str, ir.Model]:
        """Apply every pass of the target of that name to both graphs."""
        traced = self._trace(name)
        # FP16 needs to know how large the keys and values can be that the step gets.
        encoder, applied = self._lower(name, traced["encoder"], NO_BOUNDS)
        step, of_step = self._lower(name, traced["step"], applied.output_bounds)
        self.reports[name] = [*applied.reports, *of_step.reports]
        return {"encoder": encoder, "step": step}

    def _lower(
        self, name: str, traced: ir.Model, input_bounds: Mapping[str, Bound]
    ) -> tuple[ir.Model, Applied]:
        """Apply every pass of the target of that name to a copy of one traced graph."""
        role, dump = str(traced.graph.name), self._dumps.get(name)
        log.info("%s: the %s graph", name, role)
        model = traced.clone()
        if dump is not None:
            dump.stage("traced", model)
        # Equal weights merge parts of the graphs of members, which then have no known shape.
        merged = share_tables(self._model) or repeat_cross_attention(self._model)
        contract = self.contract(name)
        target = TARGETS[name]
        applied = run_passes(
            model,
            (self._options.engines.plugins and target.plugin_passes) or target.passes,
            self._options.disabled_passes,
            None if dump is None else dump.stage,
            input_bounds,
            [] if merged else [ModelShape.of(config, contract) for config in self._configs],
        )
        add_functions(model)  # of fused ops that were traced, not inserted by a pass
        inputs, outputs = contract.graphs[role]
        declare(model.graph.inputs, inputs, role)
        declare(model.graph.outputs, outputs, role)
        return model, applied

    def _trace(self, name: str) -> dict[str, ir.Model]:
        """Trace both graphs in FP32, once for all targets of the same layout and opset."""
        layout = replace(self.layout(name), cache_type="float32")  # passes narrow the caches
        contract = ensemble_contract(self._configs, self._options.attention, layout)
        opset = TARGETS[name].opset
        if (contract, opset) not in self._traced:
            self._traced[contract, opset] = trace_graphs(
                self._model, self._limits, contract, opset, self._shortlist,
                self._activation_scales, self._heads,
            )  # fmt: skip
        return self._traced[contract, opset]


def _graph_record(package: str, profiles: Sequence[Profile]) -> EngineRecord:
    """Record of a graph that runs as it is, in the shapes of profiles, on any machine."""
    return EngineRecord(
        package=package,
        version=importlib.metadata.version(package),
        system=system_name(),
        compute_capabilities=(),
        hardware_compatibility="none",
        version_compatible=True,
        weights_stripped=False,
        profiles=tuple(profiles),
    )


def trace_graphs(
    model: Transformer | Ensemble,
    limits: Limits,
    contract: Contract,
    opset: int,
    shortlist: Shortlist | None = None,
    activation_scales: Mapping[str, float] = MappingProxyType({}),
    heads: AttentionHeads = LAST_LAYER,
) -> dict[str, ir.Model]:
    """Trace both graphs in FP32, and set the roles and input magnitudes of their tensors."""
    modules = _modules(model, limits, contract, shortlist, heads)
    members = labelled(model)
    matrices = {
        f"{prefix}{name}": matrix
        for prefix, member in members
        for name, matrix in matmul_weights(member).items()
    }
    magnitudes = {id(matrices[name]): x for name, x in activation_scales.items()}
    tables = [
        table.weight for _, member in members for table in (member.source_table, member.embedding)
    ]
    traced = {}
    for name, (inputs, outputs) in contract.graphs.items():
        log.info("tracing the %s graph", name)
        module = modules[name]
        with tapped(module, model, name) as taps:
            graph = trace(module, inputs, outputs, name, opset, (*taps.stream, *taps.logits))
        tensors_by_name = module.state_dict(keep_vars=True)
        names = {
            name
            for name, tensor in tensors_by_name.items()
            if any(tensor is table for table in tables)
        }
        set_roles(graph, EMBEDDING, names)
        set_input_magnitudes(graph, {
            name: magnitudes[id(tensor)]
            for name, tensor in tensors_by_name.items() if id(tensor) in magnitudes
        })  # fmt: skip
        set_roles(graph, RESIDUAL, set(taps.stream))
        traced[name] = graph
    return traced


def _modules(
    model: Transformer | Ensemble,
    limits: Limits,
    contract: Contract,
    shortlist: Shortlist | None,
    heads: AttentionHeads,
) -> dict[str, nn.Module]:
    """Modules of both graphs."""
    if isinstance(model, Ensemble):
        return {
            "encoder": EnsembleEncoderGraph(model.members, limits.max_source_length),
            "step": EnsembleStepGraph(model.members, limits.max_target_length, contract, heads),
        }
    table = shortlist if contract.shortlist is not None else None
    return {
        "encoder": EncoderGraph(model, limits.max_source_length, table),
        "step": StepGraph(model, limits.max_target_length, contract, heads),
    }


def describe(model: Transformer) -> ModelDescription:
    """Describe a model for the manifest."""
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
        source_vocabulary_size=config.source_vocabulary_size,
        source_end=config.source_end,
    )


def describe_members(
    checkpoints: Sequence[Checkpoint], models: Sequence[Transformer]
) -> tuple[MemberDescription, ...]:
    """Describe the members of an ensemble for the manifest."""
    return tuple(
        MemberDescription(describe(model), checkpoint.weights_sha256, model.config.is_recurrent)
        for checkpoint, model in zip(checkpoints, models, strict=True)
    )
