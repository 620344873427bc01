"""Ours and peers with the same weights, tokens and search, each in a warm process.

- `ctranslate2`: CTranslate2, converted from our checkpoint through its own converter API.
- `marian`: Marian, see `marian.py`.
- `transformers`: Hugging Face transformers, see `hugging_face.py`.
- `torch`: PyTorch with the reference beam search.
- `translate-trt before`: another version of ours, in its own Python environment.

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
from translate_trt.runtime.benchmark import peak_memory
from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.text.tokenizer import Tokenizer

OURS, BEFORE = "translate-trt", "translate-trt before"
#: Distributions that translating text needs; Marian has SentencePiece inside.
REQUIRED = {
    **dict.fromkeys((OURS, BEFORE), ("translate-trt",)),
    "ctranslate2": ("ctranslate2", "sentencepiece"), "marian": ("pymarian",),
    "transformers": ("transformers", "torch", "sentencepiece"), "torch": ("translate-trt[train]",),
}  # fmt: skip
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Setting:
    """System and how it runs."""

    system: str  # a key of SYSTEMS
    precision: str = "int8"  # or "fp32"; "fp16" is on a GPU
    gpu_target: str = ""  # of ours for fp16

    # ---- cores and batches: each system is measured at its own best ----
    workers: int = 1  # batches translated side by side
    threads: int = 1  # of each worker
    batch_tokens: int = 512  # source tokens of a batch, padding included
    weights: str = ""  # format of packed int8 weights, where a system has several (Marian)
    environment: tuple[
        tuple[str, str], ...
    ] = ()  # variables that the system reads when it is imported
    python: str = ""  # interpreter of the system; this one if empty

    # ---- the search ----
    beam_size: int = 4
    length_penalty: float = 0.6
    # CTranslate2, fairseq and Hugging Face divide by length ** alpha, and can stop a sentence once
    # its pool of finished hypotheses is full. Ours supports both; its default is the paper's rule,
    # which searches longer.
    paper_rule: bool = False
    shortlist: bool = False  # restrict the vocabulary of a sentence to its shortlist
    languages: tuple[str | None, str | None] = (None, None)  # of models with several
    source_prefix: tuple[int, ...] = ()  # tokens before every source: the model's prompt
    target_prefix: tuple[int, ...] = ()  # first tokens of every translation

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
        languages = dict(zip(("source_language", "target_language"), self.languages, strict=True))
        found = SearchOptions(self.beam_size, self.length_penalty, **languages)
        if self.paper_rule:
            return found
        return dataclasses.replace(found, length_penalty_form="length", early_stopping=True)


@dataclass(frozen=True)
class Models:
    """One model in the formats of all systems."""

    checkpoint: Path
    bundle: Path
    converted: Path  # with a folder per peer and precision
    before: Path = Path()  # bundle for another version of ours


class System(Protocol):
    """Loaded system; token ids on both sides have no start or end symbols."""

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the best translations."""


class Ours:
    """Bundle behind the public API."""

    def __init__(self, setting: Setting, models: Models) -> None:
        self._options = setting.search_options()
        self._translator = Translator(
            models.before if setting.system == BEFORE else models.bundle,
            setting.gpu_target or f"onnx-{setting.precision}",
            shortlist=setting.shortlist,
            threads=setting.threads,
            batch_tokens=setting.batch_tokens,
            workers=setting.workers,
        )

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        found = self._translator.translate_ids(sources, self._options)
        return [list(hypotheses[0].tokens) for hypotheses in found]


# ---- peers ----


def names_of(size: int) -> list[str]:
    """Return a name for each token id, which CTranslate2 takes in place of ids."""
    return ["<pad>", "<unk>", "<s>", "</s>", *map(str, range(4, size))]


class CTranslate2:
    """CTranslate2, called with one batch of sentences of similar length at a time.

    A call has one maximum length for all its sentences, while ours is each source's length + 50.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        # Its converters import torch if it is installed; deployments do not have it.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        import ctranslate2

        self._setting = setting
        sizes = Tokenizer(*tokenizer_of(models.checkpoint))
        self._names = names_of(max(sizes.source_vocabulary_size, sizes.vocabulary_size))
        self._ids = {name: index for index, name in enumerate(self._names)}
        self._translator = ctranslate2.Translator(
            str(models.converted / f"ctranslate2-{setting.precision}"),
            device="cuda" if setting.precision == "fp16" else "cpu",
            compute_type={"fp32": "float32", "fp16": "float16"}.get(setting.precision, "int8"),
            inter_threads=setting.workers,
            intra_threads=setting.threads,
            max_queued_batches=-1,
        )

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        setting = self._setting
        waiting: list[tuple[int, Any]] = []
        forced = [self._names[token] for token in setting.target_prefix]
        lengths = [len(source) + 1 for source in sources]
        for rows in length_sorted_batches(lengths, setting.batch_tokens):
            batch = [
                [self._names[token] for token in (*setting.source_prefix, *sources[row])]
                for row in rows
            ]
            found = self._translator.translate_batch(
                batch,
                asynchronous=True,
                beam_size=setting.beam_size,
                length_penalty=setting.length_penalty,
                max_decoding_length=max(map(len, batch)) + 50,
                use_vmap=setting.shortlist,
                target_prefix=[forced] * len(batch) if forced else None,
            )
            waiting += zip(rows, found, strict=True)
        results: list[list[int]] = [[] for _ in sources]
        for row, translation in waiting:
            best = translation.result().hypotheses[0]
            results[row] = [self._ids[name] for name in best]
        return results


def convert_ctranslate2(checkpoint: Path, out: Path, precision: str) -> None:
    """Write the checkpoint in CTranslate2's format.

    Raises:
        OptionError: CTranslate2 does not support the shape of the model.
    """
    from ctranslate2.converters.converter import Converter
    from ctranslate2.specs import common_spec, transformer_spec

    from translate_trt.train.checkpoint import open_checkpoint

    model = open_checkpoint(checkpoint).load_model()
    config = model.config
    if config.d_k != config.d_v:
        raise OptionError("CTranslate2 has no heads whose key_size is not their value size.")
    if config.is_recurrent:
        raise OptionError("CTranslate2 has no SSRU decoder.")

    class FromCheckpoint(Converter):  # type: ignore[misc]
        def _load(self) -> Any:
            spec = transformer_spec.TransformerSpec.from_config(
                (config.encoder_layers, config.decoder_layers),
                config.heads,
                pre_norm=config.norm == "pre",
                activation=getattr(common_spec.Activation, config.activation.upper()),
                layernorm_embedding=config.norm_embedding,
            )
            _fill_spec(spec, model)
            spec.register_source_vocabulary(names_of(config.input_vocabulary_size))
            spec.register_target_vocabulary(names_of(config.vocabulary_size))
            spec.config.decoder_start_token = spec.config.bos_token
            spec.config.add_source_eos = config.source_end
            spec.config.layer_norm_epsilon = config.layer_norm_epsilon
            return spec

    quantization = {"int8": "int8", "fp16": "float16"}.get(precision)
    FromCheckpoint().convert(str(out), quantization=quantization, force=True)


def write_vocabulary_map(table: Path, converted: Path) -> None:
    """Write a shortlist in CTranslate2's format: a token, a tab, and the candidates it adds.

    The candidates of the empty token are in every list. CTranslate2 makes one list for all
    sentences of a batch; our lists are per sentence.
    """
    from translate_trt.train.shortlist.table import Shortlist

    shortlist = Shortlist.load(table)
    names = names_of(shortlist.vocabulary_size)
    sources = names_of(len(shortlist.translations))
    rules = [("", shortlist.frequent), *zip(sources, shortlist.translations, strict=True)]
    with (converted / "vmap.txt").open("w", encoding="utf-8", newline="\n") as file:
        for key, tokens in rules:
            if tokens.any():
                file.write(f"{key}\t{' '.join(names[token] for token in tokens if token)}\n")


def _fill_spec(spec: Any, model: Any) -> None:
    """Copy our weights into CTranslate2's specification."""
    spec.encoder.embeddings[0].weight = model.source_table.weight.detach().numpy()
    spec.decoder.embeddings.weight = model.embedding.weight.detach().numpy()
    spec.decoder.projection.weight = model.projection_weight.detach().numpy()
    for side, norm, embedding_norm, positions in (
        (spec.encoder, model.encoder_norm, model.source_embedding_norm, model.positions),
        (spec.decoder, model.decoder_norm, model.embedding_norm, model.target_positions),
    ):
        side.scale_embeddings = model.config.scale_embedding
        table = positions(0, positions.longest or 1024)
        side.position_encodings.encodings = table.detach().numpy()
        if model.config.norm == "pre":
            _fill_norm(side.layer_norm, norm)
        if model.config.norm_embedding:
            _fill_norm(side.layernorm_embedding, embedding_norm)
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
        from translate_trt.runtime.bundle.contract import unscored
        from translate_trt.train.search import beam_search

        setting = self._setting
        options = setting.search_options()
        prompted = [[*setting.source_prefix, *source] if source else [] for source in sources]
        forced = [[unscored(token) for token in setting.target_prefix]] * len(sources)
        found = beam_search(self.model, prompted, options, forced, setting.batch_tokens)
        return [list(hypotheses[0].tokens) for hypotheses in found]


#: Module and class of each system.
SYSTEMS = {
    OURS: ("systems", "Ours"),
    BEFORE: ("systems", "Ours"),
    "ctranslate2": ("systems", "CTranslate2"),
    "marian": ("marian", "Marian"),
    "transformers": ("hugging_face", "Transformers"),
    "torch": ("systems", "Torch"),
}


def open_system(setting: Setting, models: Models) -> System:
    """Load a system in this process."""
    module, name = SYSTEMS[setting.system]
    opened: System = getattr(importlib.import_module(module), name)(setting, models)
    return opened


def convert(setting: Setting, made: Models, shortlist: Path | None = None) -> None:
    """Convert the checkpoint for a peer; `shortlist` is the table for settings that use one.

    Raises:
        TranslateTrtError: The peer cannot run the model.
    """
    out = made.converted / f"{setting.system}-{setting.precision}"
    if setting.system == "marian":
        import marian

        out = marian.folder_of(setting, made)
        table = shortlist if setting.shortlist else None
        if setting.target_prefix:
            raise OptionError("Marian takes no language before the translation.")
        if not out.exists():
            marian.convert(made.checkpoint, out, setting.precision, table)
    elif setting.system == "ctranslate2":
        if not out.exists():
            convert_ctranslate2(made.checkpoint, out, setting.precision)
        if setting.shortlist and shortlist is not None:
            write_vocabulary_map(shortlist, out)
    elif setting.system == "transformers":
        import hugging_face

        if not (made.converted / hugging_face.FOLDER).exists():
            hugging_face.convert(made.checkpoint, made.converted / hugging_face.FOLDER)


# ---- processes ----


def tokenizer_of(checkpoint: Path) -> tuple[Path, Path]:
    """Return the SentencePiece models of source and target, without the modules of training."""
    shared, own = (checkpoint / "tokenizer.spm",) * 2, ("source.spm", "target.spm")
    return shared if shared[0].exists() else (checkpoint / own[0], checkpoint / own[1])


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
    served = Served(system, Tokenizer(*tokenizer_of(models.checkpoint)))
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
            [setting.python or sys.executable, __file__],
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
            TranslateTrtError: The process has ended.
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
            code = process.wait()
            raise TranslateTrtError(f"{self.setting.label} ended with code {code}; see above.")
        self._signal(signal.SIGSTOP)
        return json.loads(line)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def memory(self) -> int:
        """Return the peak resident set of the process and its children, in bytes.

        Memory that they share, such as mapped weights, counts once per process.
        """
        root = psutil.Process(self._process.pid)
        family = [root, *root.children(recursive=True)]
        return sum(peak_memory(member.pid) or 0 for member in family)

    def close(self) -> None:
        """Kill the process."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def processes(settings: Sequence[Setting], models: Models) -> Iterator[dict[str, Process]]:
    """Start a warm process for each setting; yield them by label."""
    with contextlib.ExitStack() as stack:
        yield {setting.label: stack.enter_context(Process(setting, models)) for setting in settings}


if __name__ == "__main__":
    serve()
