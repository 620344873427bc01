"""Inputs and shards of corpora, translated without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime.confidence import Word
from translate_trt.runtime.errors import BackendError, InputError, OptionError
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.serve.corpus.job import Job, ShardRecord
from translate_trt.runtime.serve.corpus.join import join_parts
from translate_trt.runtime.serve.corpus.plan import Input, find_inputs, plan
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions
from translate_trt.runtime.serve.corpus.shard import translate_shard

OPTIONS = CorpusOptions(shard_lines=3, max_characters=40)
SEARCH = SearchOptions()


class Upper:
    """Translator to capitals that fails on lines with "crash", and excludes some terms.

    Attributes:
        asked: Arguments of the last request.
        lines: All lines that were translated.
        constraints: Their constraints.
    """

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.lines: list[str] = []
        self.constraints: list[Any] = []

    def request(self, lines: Sequence[str], options: SearchOptions, **asked: Any) -> LineRequest:
        self.asked = asked
        return LineRequest(lines, options, terminology=asked["terminology"])

    def translate_request(self, request: LineRequest) -> list[Translation]:
        own = request.constraints or [()] * len(request.lines)
        for line, phrases in zip(request.lines, own, strict=True):
            if line == "long" and (phrases or request.terminology):
                raise InputError("a line too long for the model")
            if len(phrases) > 2:
                raise OptionError("no room")
        if any("crash" in line for line in request.lines):
            raise BackendError("out of memory")
        self.constraints += own if request.constraints else ()
        self.lines += request.lines
        return [self._one(line) for line in request.lines]

    def words(self, hypothesis: TextHypothesis) -> list[Word]:
        return [Word(text, -0.5, 0.25) for text in hypothesis.text.split()]

    def _one(self, line: str) -> Translation:
        tokens = tuple(range(len(line.split())))
        segment = Hypothesis(tokens, 0.0, (0.0,) * (len(tokens) + 1))
        segments = (segment,) if tokens else ()
        return Translation((TextHypothesis(self.spell(line), 0.0, segments),))

    def spell(self, line: str) -> str:
        return line.upper()


def write(path: Path, content: bytes) -> Input:
    path.write_bytes(content)
    (source,) = find_inputs([str(path)], "text")
    return source


def write_parquet(path: Path, columns: Any, **options: Any) -> Input:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
    parquet.write_table(table, path, **options)
    (source,) = find_inputs([str(path)], "text")
    return source


def translate(
    job: Job, source: Input, translator: Any = None, options: CorpusOptions = OPTIONS
) -> list[ShardRecord]:
    """Translate all shards of an input and join its output."""
    translator = translator or Upper()
    shards = plan(source, options)
    found = [translate_shard(shard, job, translator, SEARCH, options) for shard in shards]
    join_parts(job, source, shards, found)
    return found
