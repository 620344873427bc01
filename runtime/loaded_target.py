"""Loading of a target of a bundle, with libtranslate_trt or with `Reference`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from translate_trt.runtime import native
from translate_trt.runtime.backends import Settings, load_cuda, load_engines, load_graphs
from translate_trt.runtime.backends.engines import EngineRecord, check_engines
from translate_trt.runtime.backends.packages import CUDA, PACKAGES, TORCH
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry, verify_files
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.native.core import Core
from translate_trt.runtime.process import LOADING_CONTEXT
from translate_trt.runtime.reference import PlainTranslator, Reference
from translate_trt.runtime.text.tokenizer import ModelFile, Tokenizer


class LoadedTarget(NamedTuple):
    """A target that translates with its core, or with the Python `Reference`.

    Attributes:
        core: libtranslate_trt; None if it does not run this target.
        reference: The search loop in Python; None if there is a core.
        batch_tokens: Source tokens per batch, padding included.
        tokenizer: Returns the tokenizer, which is made by the first call.
    """

    core: Core | None
    reference: PlainTranslator | None
    batch_tokens: int
    tokenizer: Callable[[], Tokenizer]


@dataclass(frozen=True)
class TargetLoader:
    """Loader of a target.

    Attributes:
        bundle: Directory of the bundle.
        manifest: Its manifest.
        target: Manifest entry of the target.
        settings: Device, and threads of each worker.
        workers: Number of batches translated at once; None for the default.
        batch_tokens: Source tokens per batch; None for the default.
        cache_mib: Memory in MiB for results of earlier sentences.
        device: Name of the device as the caller gave it.
        check_hashes: Compare every file with its SHA-256 in the manifest.
    """

    bundle: Path
    manifest: Manifest
    target: TargetEntry
    settings: Settings
    workers: int | None
    batch_tokens: int | None
    cache_mib: int
    device: str | None
    check_hashes: bool

    def load(self) -> LoadedTarget:
        """Load the target with libtranslate_trt, or with `Reference` where there is none.

        Raises:
            BundleError: A file is missing or changed, or engines do not run on this machine.
            BackendError: No GPU is available, memory ran out, or the target needs the library.
            OptionError: The target does not run on the device.
        """
        if self.target.precision == "int8" and self.settings.gpu is not None:
            raise OptionError(
                f"{self.target.name} runs on a CPU only, and device is {self.device!r}. Choose "
                "onnx-fp16 or onnx-fp32, or leave device out."
            )
        has_engines = self.target.backend in (*PACKAGES, TORCH, CUDA)
        on_core = has_engines or self.target.backend == "onnxruntime"
        library = native.library() if on_core else None
        if library is not None:
            with LOADING_CONTEXT.get()():
                core = self._load_core(library)
                return LoadedTarget(core, None, core.batch_tokens, self._read_tokenizer())
        if has_engines:
            raise BackendError(
                f"{self.target.name} needs libtranslate_trt, and this process runs on "
                f"{native.status()}. Choose an onnx target to run without the library."
            )
        if on_core:
            native.report_fallback()
        self._verify_files()
        tokenizer = self._read_tokenizer()
        plain = self._load_reference(tokenizer())
        return LoadedTarget(None, plain, plain.reference.batch_tokens, tokenizer)

    def _load_core(self, library: Path) -> Core:
        """Load the target with libtranslate_trt."""
        device, check_hashes = self.device, self.check_hashes
        engines = None
        if self.target.backend in (*PACKAGES, TORCH):
            self._verify_files()
            records: dict[str, EngineRecord] = {}
            if self.target.engine is not None:
                records = check_engines(self.target, self.bundle, self.settings.gpu or 0)
            engines = load_engines(self._files(), self.target.contract, self.settings, records)
            device, check_hashes = None, False  # the engines' device; the files are verified
        elif self.target.backend == CUDA or self.settings.gpu is not None:
            load_cuda(self.target, self.settings)
        return Core(
            library, self.bundle, self.target.name, threads=self.settings.threads,
            workers=self.workers, batch_tokens=self.batch_tokens, cache_mib=self.cache_mib,
            device=device, check_hashes=check_hashes, engines=engines,
        )  # fmt: skip

    def _load_reference(self, tokenizer: Tokenizer) -> PlainTranslator:
        """Load the target with ONNX Runtime, for the search loop in Python."""
        model = self.manifest.model
        for size, expected in (
            (tokenizer.source_vocabulary_size, model.input_vocabulary_size),
            (tokenizer.vocabulary_size, model.vocabulary_size),
        ):
            if size != expected:
                raise BundleError(
                    f"the tokenizer has {size} pieces, the model {expected}; they do not belong "
                    "together. Export the bundle again."
                )
        contract = self.target.contract
        graphs = load_graphs(self.target.backend, self._files(), contract, self.settings)
        search = Reference(graphs, contract, model.start_token, model.end_token, self.batch_tokens)
        return PlainTranslator(search, self.manifest, self.target, tokenizer)

    def _read_tokenizer(self) -> Callable[[], Tokenizer]:
        """Read the tokenizer's models, which may be replaced before they are first used."""
        models = {}
        for side, entry in self.manifest.tokenizer.items():
            models[side] = ModelFile.read(entry.locate(self.bundle))
            if self.check_hashes:
                found = hashlib.sha256(models[side].content).hexdigest()
                entry.check_hash(models[side].path, found)
        return cache(lambda: Tokenizer(models["source"], models["target"]))

    def _verify_files(self) -> None:
        verify_files(self.bundle, self.manifest, self.target.name, hashes=self.check_hashes)

    def _files(self) -> dict[str, Path]:
        """Paths of the target's files by role."""
        return {role: entry.locate(self.bundle) for role, entry in self.target.files.items()}
