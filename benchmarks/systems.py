"""Ours and peers with the same weights, tokens and search, each in a warm process.

- `ctranslate2`: CTranslate2, converted from our checkpoint through its own converter API.
- `marian`: Marian, see `marian.py`.
- `torch`, `torch-compiled`: PyTorch with the reference beam search, its layers eager or compiled.

A process runs only while it handles a request and is stopped (SIGSTOP) in between, because threads
that spin for more work would take time from the next system's turn. A system's libraries are
imported only in its process, so that they count in no other one's memory or start-up.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np
import psutil

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.text.tokenizer import Tokenizer

OURS = "translate-trt"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Setting:
    """System and how it runs."""

    system: str  # a key of SYSTEMS
    precision: str = "int8"  # or "fp32"

    # ---- cores and batches: each system is measured at its own best ----
    workers: int = 1  # batches translated side by side
    threads: int = 1  # of each worker
    batch_tokens: int = 512  # source tokens of a batch, padding included
    weights: str = ""  # format of packed int8 weights, where a system has several (Marian)
    environment: tuple[
        tuple[str, str], ...
    ] = ()  # variables that the system reads when it is imported

    # ---- the search ----
    beam_size: int = 4
    length_penalty: float = 0.6
    # CTranslate2, fairseq and Hugging Face divide by length ** alpha, and can stop a sentence once
    # its pool of finished hypotheses is full. Ours supports both; its default is the paper's rule,
    # which searches longer.
    paper_rule: bool = False
    shortlist: bool = False  # restrict the vocabulary of a sentence to its shortlist

    @property
    def label(self) -> str:
        """Name of the row in tables."""
        ends = (
            f", beam {self.beam_size}" if self.beam_size != 4 else "",
            ", paper's rule" if self.paper_rule else "",
            ", shortlist" if self.shortlist else "",
        )
        return f"{self.system} {self.precision}{''.join(ends)}"

    def search_options(self) -> SearchOptions:
        """Return the search options of ours and of the PyTorch reference."""
        if self.paper_rule:
            return SearchOptions(self.beam_size, self.length_penalty)
        return SearchOptions(
            self.beam_size, self.length_penalty, length_penalty_form="length", early_stopping=True
        )


@dataclass(frozen=True)
class Models:
    """One model in the formats of all systems."""

    checkpoint: Path
    bundle: Path
    converted: Path  # with a folder per peer and precision


class System(Protocol):
    """Loaded system; token ids on both sides have no start or end symbols."""

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the best translations."""


class Ours:
    """Bundle behind the public API."""

    def __init__(self, setting: Setting, models: Models) -> None:
        self._options = setting.search_options()
        self._translator = Translator(
            models.bundle,
            f"onnx-{setting.precision}",
            shortlist=setting.shortlist,
            threads=setting.threads,
            batch_tokens=setting.batch_tokens,
            workers=setting.workers,
        )

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        found = self._translator.translate_ids(sources, self._options)
        return [list(hypotheses[0].tokens) for hypotheses in found]


# ---- peers ----


def pieces_of(checkpoint: Path) -> list[str]:
    """Return the pieces of the vocabulary, which CTranslate2 takes in place of ids."""
    tokenizer = Tokenizer(checkpoint / "tokenizer.spm", checkpoint / "tokenizer.spm")
    return tokenizer.target_pieces(range(tokenizer.vocabulary_size))


class CTranslate2:
    """CTranslate2, called with one batch of sentences of similar length at a time.

    A call has one maximum length for all its sentences, while ours is each source's length + 50.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        # Its converters import torch if it is installed; deployments do not have it.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        import ctranslate2

        self._setting = setting
        self._pieces = pieces_of(models.checkpoint)
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}
        self._translator = ctranslate2.Translator(
            str(models.converted / f"ctranslate2-{setting.precision}"),
            compute_type={"int8": "int8", "fp32": "float32"}[setting.precision],
            inter_threads=setting.workers,
            intra_threads=setting.threads,
            max_queued_batches=-1,
        )

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        setting = self._setting
        waiting: list[tuple[int, Any]] = []
        lengths = [len(source) + 1 for source in sources]
        for rows in length_sorted_batches(lengths, setting.batch_tokens):
            batch = [[self._pieces[token] for token in sources[row]] for row in rows]
            found = self._translator.translate_batch(
                batch,
                asynchronous=True,
                beam_size=setting.beam_size,
                length_penalty=setting.length_penalty,
                max_decoding_length=max(map(len, batch)) + 50,
                use_vmap=setting.shortlist,
            )
            waiting += zip(rows, found, strict=True)
        results: list[list[int]] = [[] for _ in sources]
        for row, translation in waiting:
            best = translation.result().hypotheses[0]
            results[row] = [self._ids[piece] for piece in best]
        return results


def convert_ctranslate2(checkpoint: Path, out: Path, precision: str) -> None:
    """Write the checkpoint in CTranslate2's format.

    Raises:
        OptionError: CTranslate2 does not support the shape of the model.
    """
    from ctranslate2.converters.converter import Converter
    from ctranslate2.specs import common_spec, transformer_spec

    from translate_trt.runtime.errors import OptionError
    from translate_trt.train.checkpoint import open_checkpoint

    model = open_checkpoint(checkpoint).load_model()
    config = model.config
    if config.d_k != config.d_v:
        raise OptionError("CTranslate2 has no heads whose key_size is not their value size.")
    pieces = pieces_of(checkpoint)

    class FromCheckpoint(Converter):  # type: ignore[misc]
        def _load(self) -> Any:
            spec = transformer_spec.TransformerSpec.from_config(
                (config.encoder_layers, config.decoder_layers),
                config.heads,
                pre_norm=config.norm == "pre",
                activation=common_spec.Activation.RELU,
            )
            _fill_spec(spec, model)
            spec.register_source_vocabulary(pieces)
            spec.register_target_vocabulary(pieces)
            spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = pieces[1:4]
            spec.config.decoder_start_token = pieces[2]
            spec.config.add_source_eos = True
            spec.config.layer_norm_epsilon = config.layer_norm_epsilon
            return spec

    quantization = {"int8": "int8", "fp32": None}[precision]
    FromCheckpoint().convert(str(out), quantization=quantization, force=True)


def write_vocabulary_map(table: Path, checkpoint: Path, converted: Path) -> None:
    """Write a shortlist in CTranslate2's format: a token, a tab, and the candidates it adds.

    The candidates of the empty token are in every list. CTranslate2 makes one list for all
    sentences of a batch; our lists are per sentence.
    """
    from translate_trt.train.shortlist.table import Shortlist

    shortlist, pieces = Shortlist.load(table), pieces_of(checkpoint)
    rules = [("", shortlist.frequent), *zip(pieces, shortlist.translations, strict=True)]
    with (converted / "vmap.txt").open("w", encoding="utf-8", newline="\n") as file:
        for key, tokens in rules:
            if tokens.any():
                file.write(f"{key}\t{' '.join(pieces[token] for token in tokens if token)}\n")


def _fill_spec(spec: Any, model: Any) -> None:
    """Copy our weights into CTranslate2's specification."""
    weight = model.embedding.weight.detach().numpy()
    positions = model.positions(0, model.longest or 1024).detach().numpy()
    spec.encoder.embeddings[0].weight = weight
    spec.decoder.embeddings.weight = weight
    spec.decoder.projection.weight = weight
    for side, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        side.scale_embeddings = True
        side.position_encodings.encodings = positions
        if model.config.norm == "pre":
            _fill_norm(side.layer_norm, norm)
    if model.output_bias is not None:
        spec.decoder.projection.bias = model.output_bias.detach().numpy()
    for layer, ours in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        _fill_self_attention(layer, ours)
        _fill_feed_forward(layer, ours)
    for layer, ours in zip(spec.decoder.layer, model.decoder_layers, strict=True):
        _fill_self_attention(layer, ours)
        cross = ours.cross_attention
        _fill_linear(layer.attention.linear[0], cross.query)
        _fill_linear(layer.attention.linear[1], cross.key, cross.value)
        _fill_linear(layer.attention.linear[2], cross.output)
        _fill_norm(layer.attention.layer_norm, ours.cross_attention_norm.norm)
        _fill_feed_forward(layer, ours)


def _fill_self_attention(layer: Any, ours: Any) -> None:
    attention = ours.self_attention
    queries_keys_values = (attention.query, attention.key, attention.value)
    _fill_linear(layer.self_attention.linear[0], *queries_keys_values)
    _fill_linear(layer.self_attention.linear[1], attention.output)
    _fill_norm(layer.self_attention.layer_norm, ours.self_attention_norm.norm)


def _fill_feed_forward(layer: Any, ours: Any) -> None:
    _fill_linear(layer.ffn.linear_0, ours.feed_forward.inner)
    _fill_linear(layer.ffn.linear_1, ours.feed_forward.outer)
    _fill_norm(layer.ffn.layer_norm, ours.feed_forward_norm.norm)


def _fill_linear(spec: Any, *linears: Any) -> None:
    spec.weight = np.concatenate([linear.weight.detach().numpy() for linear in linears])
    spec.bias = np.concatenate([linear.bias.detach().numpy() for linear in linears])


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()


class Torch:
    """Reference beam search in PyTorch, fp32."""

    def __init__(self, setting: Setting, models: Models) -> None:
        import torch

        from translate_trt.train.checkpoint import open_checkpoint

        if setting.precision != "fp32":
            raise ValueError(f"PyTorch runs in fp32 here, not in {setting.precision}.")
        torch.set_num_threads(setting.threads)
        self._setting = setting
        self.model: Any = open_checkpoint(models.checkpoint).load_model()

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        from translate_trt.train.search import beam_search

        setting = self._setting
        options = setting.search_options()
        found = beam_search(self.model, sources, options, batch_tokens=setting.batch_tokens)
        return [list(hypotheses[0].tokens) for hypotheses in found]


class CompiledTorch(Torch):
    """Reference beam search with every layer compiled by torch.compile, for any size."""

    def __init__(self, setting: Setting, models: Models) -> None:
        super().__init__(setting, models)
        for layer in (*self.model.encoder, *self.model.decoder):
            layer.compile(dynamic=True)


#: Module and class of each system.
SYSTEMS = {
    OURS: ("systems", "Ours"),
    "ctranslate2": ("systems", "CTranslate2"),
    "marian": ("marian", "Marian"),
    "torch": ("systems", "Torch"),
    "torch-compiled": ("systems", "CompiledTorch"),
}


def open_system(setting: Setting, models: Models) -> System:
    """Load a system in this process."""
    module, name = SYSTEMS[setting.system]
    opened: System = getattr(importlib.import_module(module), name)(setting, models)
    return opened


def convert(setting: Setting, made: Models, shortlist: Path | None = None) -> None:
    """Convert the checkpoint for a peer; `shortlist` is the table for settings that use one."""
    out = made.converted / f"{setting.system}-{setting.precision}"
    if setting.system == "marian":
        import marian

        out = marian.folder_of(setting, made)
        table = shortlist if setting.shortlist else None
        if not out.exists():
            marian.convert(made.checkpoint, out, setting.precision, table)
    elif setting.system == "ctranslate2":
        if not out.exists():
            convert_ctranslate2(made.checkpoint, out, setting.precision)
        if setting.shortlist and shortlist is not None:
            write_vocabulary_map(shortlist, made.checkpoint, out)


# ---- processes ----


class Served:
    """Requests that a process answers, each with JSON."""

    def __init__(self, system: System, tokenizer: Tokenizer) -> None:
        self._system, self._tokenizer = system, tokenizer
        self._texts: list[str] | None = None
        self._sources: list[list[int]] = []
        self._last: list[list[int]] = []

    def texts(self, texts: list[str]) -> list[int]:
        """Set the lines and return the number of tokens of each."""
        self._texts, self._sources = texts, self._tokenizer.encode_source_batch(texts)
        return [len(source) for source in self._sources]

    def tokens(self) -> list[list[int]]:
        """Return the token ids of the lines."""
        return self._sources

    def sources(self, sources: list[list[int]]) -> None:
        """Set token ids instead of lines."""
        self._texts, self._sources = None, sources

    def translate(self, rows: list[int]) -> dict[str, Any]:
        """Translate those rows; return seconds of each part and numbers of target tokens.

        "processor" is the processor time of the search, on all threads of this process.
        """
        sources = [self._sources[row] for row in rows]
        times = [perf_counter()]
        if self._texts is not None:
            sources = self._tokenizer.encode_source_batch([self._texts[row] for row in rows])
        begin = process_time()
        times.append(perf_counter())
        self._last = self._system.translate(sources)
        times.append(perf_counter())
        processor = process_time() - begin
        if self._texts is not None:
            self._tokenizer.decode_batch(self._last)
        times.append(perf_counter())
        encode, translate, decode = (b - a for a, b in pairwise(times))
        tokens = [len(tokens) for tokens in self._last]
        seconds = {"encode": encode, "translate": translate, "decode": decode}
        return {**seconds, "processor": processor, "tokens": tokens}

    def last(self) -> dict[str, Any]:
        """Return token ids and text of the last translations."""
        return {"ids": self._last, "texts": self._tokenizer.decode_batch(self._last)}


def serve() -> None:
    """Answer each JSON line of standard input with another until the input ends."""
    if sys.platform == "linux":  # a stopped process would outlive a killed parent
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is no answer

    def reply(value: object) -> None:
        print(json.dumps(value), file=replies, flush=True)

    start = json.loads(sys.stdin.readline())
    setting = Setting(**{**start["setting"], "environment": ()})
    models = Models(*map(Path, start["models"]))
    begin = perf_counter()
    system = open_system(setting, models)
    file = models.checkpoint / "tokenizer.spm"
    served = Served(system, Tokenizer(file, file))
    reply(perf_counter() - begin)
    for line in sys.stdin:
        request = json.loads(line)
        reply(getattr(served, request.pop("do"))(**request))


class Process:
    """Process that runs one system.

    Attributes:
        setting: Setting of the system.
        load_seconds: Seconds of opening it, imports included.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        self.setting = setting
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict(setting.environment)},
            start_new_session=True,  # to stop its child processes with it
        )
        paths = [str(path) for path in dataclasses.astuple(models)]
        start = {"setting": dataclasses.asdict(setting), "models": paths}
        self.load_seconds: float = self._exchange(start)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Resume the process until it has answered a request.

        Raises:
            RuntimeError: The process has ended.
        """
        return self._exchange({"do": do, **arguments})

    def translate(self, rows: Sequence[int]) -> dict[str, Any]:
        """Translate those rows, see `Served.translate`."""
        answer: dict[str, Any] = self.ask("translate", rows=list(rows))
        return answer

    def _exchange(self, request: dict[str, Any]) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.setting.label} ended with code {process.wait()}; see above.")
        self._signal(signal.SIGSTOP)
        return json.loads(line)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def memory(self) -> dict[str, int]:
        """Return the peak resident set and the current proportional set size, in bytes.

        Both are sums over the process and its children. Memory that they share, such as mapped
        weights, counts once per process in the peak and once in all in the proportional set size.
        """
        root = psutil.Process(self._process.pid)
        family = [root, *root.children(recursive=True)]
        return {
            "peak": sum(_status(member.pid, "status", "VmHWM") for member in family),
            "share": sum(_status(member.pid, "smaps_rollup", "Pss") for member in family),
            "processes": len(family),
        }

    def close(self) -> None:
        """Kill the process."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _status(pid: int, file: str, name: str) -> int:
    """Return bytes of an entry of /proc/PID/FILE, whose unit is kB."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/{pid}/{file} has no {name}.")


@contextlib.contextmanager
def processes(settings: Sequence[Setting], models: Models) -> Iterator[dict[str, Process]]:
    """Start a warm process for each setting; yield them by label."""
    with contextlib.ExitStack() as stack:
        yield {setting.label: stack.enter_context(Process(setting, models)) for setting in settings}


if __name__ == "__main__":
    serve()
