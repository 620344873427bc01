"""Creation of Triton model repositories.

repository/
  repository.json          marks the directory as ours for --force; the server ignores it
  NAME/config.pbtxt        inputs, outputs, batching, instances and parameters of the model
  NAME/1/model.py          the model for the server's Python backend
  NAME/1/bundle/           copy of the bundle with one target, unless it is linked by its path
  NAME/warmup/text         sentence that each instance translates before it is ready, with
                           languages beside it for multilingual models
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from translate_trt.runtime import native
from translate_trt.runtime.backends import needs_gpu
from translate_trt.runtime.bundle.manifest import (
    Manifest,
    TargetEntry,
    bundle_files,
    read_manifest,
    verify_files,
    write_manifest,
)
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.atomic_files import new_directory, write_bytes_atomically, write_json
from translate_trt.runtime.io.outputs import Kind
from translate_trt.runtime.native.core import engine_memory
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.serving_options import ServerOptions
from translate_trt.runtime.version import version

log = logging.getLogger("translate_trt")

_MODEL = '''"""Created by translate-trt triton: serves the bundle in Triton's Python backend."""

from translate_trt.runtime.serve.triton.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
# Names of the file that marks a repository as ours, and of the copy of the bundle beside model.py.
_DESCRIPTION, _COPY = "repository.json", "bundle"
# Batch size of the larger warm-up request, enough for all workers.
_WARM_UP_BATCH = 16
_WARM_UP_TEXT = "Two men are working in the garden, and a dog runs along the river."


class Name(str):
    """Identifier in protobuf's text format, which is written without quotes."""


#: Fields of a protobuf message in order; a list is a repeated field.
Message: TypeAlias = Mapping[str, "Value"]
Value: TypeAlias = bool | int | str | Name | Message | Sequence["Value"]


def write_repository(
    bundle: Path,
    target: str | None,
    out: Path,
    options: ServerOptions,
    *,
    shortlist: bool = False,
    link: bool = False,
    force: bool = False,
) -> TargetEntry:
    """Create a repository with one model atomically.

    Args:
        bundle: Directory written by `translate-trt export`.
        target: Name of the target; None selects the first.
        out: Directory of the repository.
        options: Serving options.
        shortlist: Serve the target's shortlist variant.
        link: Refer to the bundle by its absolute path instead of copying it.
        force: Replace an existing repository.

    Returns:
        The manifest entry of the served target.

    Raises:
        BundleError: The bundle is missing, incomplete or changed, or lacks the target.
        OptionError: The options contradict the bundle or each other.
        OutputError: `out` exists, overlaps the bundle, or is not writable.
    """
    manifest = read_manifest(bundle)
    entry = manifest.target(target, shortlist)
    verify_files(bundle, manifest, entry.name)
    _check(manifest, entry, options)
    if options.instances > 1 and needs_gpu(entry, options.device):
        _warn_of_instances(bundle, entry, options)
    with new_directory(out, force, kind=REPOSITORY, inputs=[bundle]) as directory:
        model = directory / options.name
        (model / "1").mkdir(parents=True)
        (model / "warmup").mkdir()
        bundle_path = str(bundle.resolve()) if link else _COPY
        warm_up = _warm_up_request(manifest)
        config = configuration(entry, bundle_path, options, list(warm_up))
        write_bytes_atomically(model / "config.pbtxt", to_text(config).encode("ascii"))
        write_bytes_atomically(model / "1" / "model.py", _MODEL.encode("utf-8"))
        for tensor, text in warm_up.items():
            # Triton's format of strings: length in four bytes, then the content.
            content = text.encode()
            content = len(content).to_bytes(4, "little") + content
            write_bytes_atomically(model / "warmup" / _file(tensor), content)
        if not link:
            _copy_bundle(bundle, manifest, entry, model / "1" / bundle_path)
        description = {
            "created_by": f"translate-trt {version()}",
            "models": {options.name: {"target": entry.name, "bundle": bundle_path}},
        }
        write_json(directory / _DESCRIPTION, description)
    return entry


def repository_files(directory: Path) -> set[str] | None:
    """Relative paths of all files of a repository; None if the directory is not a repository."""
    try:
        models = json.loads((directory / _DESCRIPTION).read_bytes())["models"]
        bundle_paths = {name: model["bundle"] for name, model in models.items()}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    found = {_DESCRIPTION}
    tensors = [interface.TEXT, *interface.OPTIONS.values()]
    for name, bundle_path in bundle_paths.items():
        found |= {f"{name}/config.pbtxt", f"{name}/1/model.py"}
        found |= {f"{name}/warmup/{_file(tensor)}" for tensor in tensors}
        if bundle_path == _COPY:
            copied = bundle_files(directory / name / "1" / _COPY) or set()
            found |= {f"{name}/1/{_COPY}/{path}" for path in copied}
    return found


#: The kind of directory that `translate-trt triton --force` may replace.
REPOSITORY = Kind("model repository", "translate-trt triton", repository_files)


def _check(manifest: Manifest, entry: TargetEntry, options: ServerOptions) -> None:
    if options.device == "cpu" and needs_gpu(entry, "cpu"):
        raise OptionError(
            f"device is cpu, but {entry.name} needs a GPU; omit it, or choose an onnx target."
        )
    beam_size = manifest.search_options().beam_size
    if beam_size > options.max_beam_size:
        raise OptionError(
            f"max_beam_size {options.max_beam_size} is less than the bundle's default beam size of "
            f"{beam_size}, which requests without BEAM_SIZE use."
        )
    warm_up = min(_WARM_UP_BATCH, options.max_batch_size) * len(_WARM_UP_TEXT)
    least = beam_size * max(options.max_characters, warm_up)
    if options.max_cost < least:
        raise OptionError(
            f"max_cost {options.max_cost} is less than {least}, the cost of a text of "
            f"max_characters ({options.max_characters}) with the bundle's default beam size of "
            f"{beam_size}; raise max_cost or lower max_characters."
        )


def _warn_of_instances(bundle: Path, entry: TargetEntry, options: ServerOptions) -> None:
    """Say what several instances on one GPU cost: the server starts them on every GPU."""
    batches = "memory for its own batches"
    if entry.engine is not None and native.library() is not None:
        found = engine_memory(bundle, entry.name)
        workers = options.workers or found.workers
        batches = (
            f"{workers * found.device_bytes / 1e9:.1f} GB or more for its {workers} workers' "
            "batches"
        )
    log.warning(
        "instances is %d: every GPU gets %d processes, each with its own copy of the weights and "
        "%s. Raise workers instead, which share the weights, unless one process cannot keep the "
        "GPU busy.",
        options.instances, options.instances, batches,
    )  # fmt: skip


def _copy_bundle(bundle: Path, manifest: Manifest, entry: TargetEntry, copy: Path) -> None:
    """Copy the bundle with one target, and verify the copy."""
    for file in dict.fromkeys([*manifest.tokenizer.values(), *entry.files.values()]):
        path = copy / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.locate(bundle), path)
    alone = dataclasses.replace(manifest, targets={entry.name: entry})
    write_manifest(copy, alone)
    verify_files(copy, alone, entry.name)


def _warm_up_request(manifest: Manifest) -> dict[interface.Tensor, str]:
    """Return the inputs of a warm-up request; languages are arbitrary."""
    request, defaults = {interface.TEXT: _WARM_UP_TEXT}, manifest.search_options()
    for name, known in (
        ("source_language", manifest.prompt.source_languages),
        ("target_language", manifest.prompt.target_languages),
    ):
        if known and getattr(defaults, name) is None:
            request[interface.OPTIONS[name]] = min(known)
    return request


def _file(tensor: interface.Tensor) -> str:
    return tensor.name.lower()


# ---- config.pbtxt ----


def configuration(
    entry: TargetEntry, bundle: str, options: ServerOptions, warm_up: Sequence[interface.Tensor]
) -> Message:
    """Create Triton's `ModelConfig`.

    Args:
        entry: Manifest entry of the target.
        bundle: Path of the bundle, absolute or relative to the model's version directory.
        options: Serving options.
        warm_up: Inputs of the warm-up request.
    """
    gpu = needs_gpu(entry, options.device)
    batching: dict[str, Value] = {"max_queue_delay_microseconds": options.queue_delay}
    if options.preferred_batch_sizes:
        batching["preferred_batch_size"] = list(options.preferred_batch_sizes)
    inputs = [
        {
            **_tensor(one),
            "optional": True,
            # Requests of a batch may have different lengths.
            **({"allow_ragged_batch": True} if one is interface.TOKENS else {}),
        }
        for one in interface.INPUTS
    ]
    return {
        "name": options.name,
        "backend": "python",
        "max_batch_size": options.max_batch_size,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": inputs,
        "output": [_tensor(one) for one in interface.OUTPUTS],
        "dynamic_batching": batching,
        # Without a list of GPUs, `count` instances run on each GPU that the server finds.
        "instance_group": [
            {"count": options.instances, "kind": Name("KIND_GPU" if gpu else "KIND_CPU")}
        ],
        "model_warmup": [
            _warm_up("one", 1, warm_up),
            _warm_up("batch", min(_WARM_UP_BATCH, options.max_batch_size), warm_up),
        ],
        "parameters": [
            {"key": key, "value": {"string_value": value}}
            for key, value in _parameters(entry, bundle, options).items()
        ],
    }


def _tensor(one: interface.Tensor) -> dict[str, Value]:
    return {
        "name": one.name,
        "data_type": Name(f"TYPE_{one.data_type}"),
        "dims": list(one.shape),
    }


def _warm_up(name: str, batch_size: int, tensors: Sequence[interface.Tensor]) -> Message:
    values: dict[str, Message] = {
        tensor.name: {
            "data_type": Name(f"TYPE_{tensor.data_type}"),
            "dims": list(tensor.shape),
            "input_data_file": _file(tensor),
        }
        for tensor in tensors
    }
    return {
        "name": name,
        "batch_size": batch_size,
        "inputs": [{"key": key, "value": value} for key, value in values.items()],
    }


def _parameters(entry: TargetEntry, bundle: str, options: ServerOptions) -> dict[str, str]:
    """Return the parameters for the model; missing numbers are chosen on the server."""
    found = {
        "format": interface.FORMAT,
        "bundle": bundle,
        "target": entry.name,
        "trust_code": "true" if options.trust_code else "false",
    }
    for name in (
        "workers", "threads", "batch_tokens", "cache_mib", "capacity", "max_beam_size",
        "max_characters", "max_cost",
    ):  # fmt: skip
        value = getattr(options, name)
        if value is not None:
            found[name] = str(value)
    return found


def to_text(message: Message) -> str:
    """Format a message in protobuf's text format, in ASCII."""
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Message, indent: str = "") -> Iterator[str]:
    for name, value in message.items():
        repeated = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for one in repeated:
            if isinstance(one, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(one, f"{indent}  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_scalar(one)}"


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not isinstance(value, Name):
        return f'"{_escaped(value)}"'
    return str(value)


def _escaped(text: str) -> str:
    """Escape quotes, backslashes and bytes outside printable ASCII as three octal digits."""
    # surrogateescape preserves file names that are not valid UTF-8.
    content = text.encode("utf-8", "surrogateescape")
    plain = set(range(0x20, 0x7F)) - set(b'"\\')
    return "".join(chr(one) if one in plain else f"\\{one:03o}" for one in content)
