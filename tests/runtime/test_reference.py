"""Reference implementation: scripted steps, step inputs, and batches.

Scripted graphs (support/scripted.py) tell every beam's past from the caches alone, so that a slot
lost on the way is an error, and what is found can be held against PyTorch's beam search.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from support.prompts import SOURCE, TARGET, with_prompt
from support.scripted import (
    Script,
    ScriptedGraphs,
    ScriptedModel,
    random_script,
    scripted_search,
)
from support.translations import assert_same, bits, random_sources

from translate_trt.export.contract import GraphLayout
from translate_trt.runtime import TranslationService, Translator, native
from translate_trt.runtime.bundle.contract import NEXT
from translate_trt.runtime.errors import BackendError, InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Arrays
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

# ---- batches of sentences that follow scripts ----

BEAMS, LONGEST = 3, 14
LAYOUTS = {"shared": GraphLayout(), "static": GraphLayout(beams=BEAMS, slots=BEAMS * LONGEST)}
OPTIONS = SearchOptions(beam_size=BEAMS, num_hypotheses=BEAMS, max_length=LONGEST)


def scripts_of(count: int) -> list[Script]:
    return [random_script(seed, 19) for seed in range(count)]


def sources_of(count: int) -> list[list[int]]:
    """Return sources of all lengths; source i follows script i."""
    rng = random.Random(0)
    lengths = [rng.choice((0, 1, 3, 3, 5, 9, 9, 30)) for _ in range(count)]
    return [
        [4 + index, *(rng.randrange(4, 19) for _ in range(length))]
        for index, length in enumerate(lengths)
    ]


def by_pytorch(
    scripts: Sequence[Script],
    options: SearchOptions,
    sources: list[list[int]],
    prefixes: list[list[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Search with PyTorch, which has no caches at all on scripts."""
    return beam_search(cast(Transformer, ScriptedModel(scripts)), sources, options, prefixes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_tokens", [1, 40, 400])
def test_any_batches_find_what_pytorch_finds(layout: str, batch_tokens: int) -> None:
    scripts, sources = scripts_of(24), sources_of(24)
    prefixes = [[5 + index % 9, 9, 11][: index % 4] for index in range(24)]
    graphs = ScriptedGraphs(scripts, layout=LAYOUTS[layout])
    found = scripted_search(graphs, OPTIONS, sources, prefixes, batch_tokens)
    assert_same(found, by_pytorch(scripts, OPTIONS, sources, prefixes))
    assert sum(count for count, _ in graphs.encoded) == 24
    assert all(n * s <= batch_tokens or n == 1 for n, s in graphs.encoded)
    assert (max(n for n, _ in graphs.encoded) > 1) == (batch_tokens > 1)
    assert {size[:2] for size in graphs.sizes} == set(graphs.encoded)


# ---- caches that grow, slots that are used again ----


@pytest.mark.parametrize("beams", [4, 8])
def test_a_long_search_needs_few_slots(beams: int) -> None:
    steps = 120
    options = SearchOptions(
        beam_size=beams, num_hypotheses=beams, min_length=steps - 2, max_length=steps
    )
    scripts = [random_script(seed, 2 * beams + 3) for seed in range(3)]
    graphs, sources = ScriptedGraphs(scripts), [[4], [5], [6]]
    found = scripted_search(graphs, options, sources)
    assert graphs.steps >= steps - 2
    assert max(size[2] for size in graphs.sizes) < 0.6 * beams * steps
    # A cache is never much larger than the most that one of its sentences needed.
    assert graphs.sizes[-1][2] <= max(graphs.used) + beams + 16
    assert_same(found, by_pytorch(scripts, options, sources))


def test_a_row_that_is_done_needs_no_more_slots() -> None:
    class Full(ScriptedGraphs):
        """Tell of every row that is done that its slots are taken."""

        def step(self, inputs: Arrays) -> Arrays:
            outputs = super().step(inputs)
            return outputs | {"full": outputs[NEXT + "done"]}

    graphs = Full(scripts_of(6))
    scripted_search(graphs, SearchOptions(beam_size=2, max_length=7), sources_of(6))
    assert {size[2] for size in graphs.sizes} == {16}


# ---- failures ----


@pytest.mark.parametrize("error", [BackendError("out of memory"), KeyboardInterrupt()])
def test_an_error_of_a_step_ends_the_call_with_it(error: BaseException) -> None:
    class Failing(ScriptedGraphs):
        def step(self, inputs: Arrays) -> Arrays:
            if self.steps == 2:
                raise error
            return super().step(inputs)

    graphs = Failing(scripts_of(9))
    with pytest.raises(type(error)) as caught:
        scripted_search(graphs, OPTIONS, sources_of(9), batch_tokens=1)
    assert caught.value is error
    assert len(graphs.encoded) == 1  # no other batch begins


def test_probabilities_that_are_not_finite_are_an_error() -> None:
    def nothing(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        return np.full(19, np.nan, np.float32)

    graphs, sources = ScriptedGraphs([*scripts_of(2), nothing]), [[4, 9, 9], [5, 9, 9], [6, 9, 9]]
    with pytest.raises(BackendError, match=r"probabilities.*3 source"):
        scripted_search(graphs, OPTIONS, sources, batch_tokens=4)


# ---- plain lines without libtranslate_trt ----

LINES = ["the cat runs.", "", "a dog eats green", "Haus Hund l\u00e4uft."]


@pytest.fixture
def plain(compiled_bundle: Path, without_library: None) -> Translator:
    translator = Translator(compiled_bundle, threads=1)
    assert translator.core is None
    return translator


@pytest.mark.parametrize(
    "options",
    [
        {}, {"beam_size": 1}, {"num_hypotheses": 4, "length_penalty": 1.0},
        {"early_stopping": True, "min_length": 6, "max_length": 9},
        {"beam_size": 20, "num_hypotheses": 20},  # more beams than the slots of few
    ],
)  # fmt: skip
def test_plain_lines_are_translated_as_by_the_library(
    compiled_bundle: Path, plain: Translator, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.delenv(native.VARIABLE)
    translator = Translator(compiled_bundle, threads=1)
    assert translator.core is not None
    search = SearchOptions(**options)
    prefixes = ["Haus", "", "der Hund", ""]
    for give in (
        lambda one: one.translate(LINES, search),
        lambda one: one.translate(LINES, search, prefixes),
        lambda one: list(one.translate_iter(LINES * 3, search, chunk_lines=5)),
    ):
        for found, expected in zip(give(plain), give(translator), strict=True):
            assert [one.text for one in found.hypotheses] == [
                one.text for one in expected.hypotheses
            ]
            pairs = zip(found.hypotheses, expected.hypotheses, strict=True)
            for one, other in pairs:
                assert_same([list(one.segments)], [list(other.segments)])
    ids = [translator.tokenizer.encode_source(line) for line in LINES]
    assert_same(plain.translate_ids(ids, search), translator.translate_ids(ids, search))


@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
def test_many_sources_have_the_bits_of_the_library(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch, compiled_kernels: str, target: str
) -> None:
    options, sources = SearchOptions(num_hypotheses=4), random_sources(80, seed=3)
    expected = Translator(compiled_bundle, target, threads=1).translate_ids(sources, options)
    monkeypatch.setenv(native.VARIABLE, "none")
    found = Translator(compiled_bundle, target, threads=1).translate_ids(sources, options)
    assert list(map(bits, found)) == list(map(bits, expected))


def test_a_prompt_before_plain_lines(
    compiled_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SearchOptions(source_language="en", target_language="nl")
    for name, prompt in (("target", TARGET), ("source", SOURCE)):
        bundle = with_prompt(compiled_bundle, prompt, tmp_path / name)
        wanted = options if name == "target" else SearchOptions(target_language="nld")
        expected = Translator(bundle, threads=1).translate(LINES, wanted)
        with monkeypatch.context() as patch:
            patch.setenv(native.VARIABLE, "none")
            found = Translator(bundle, threads=1).translate(LINES, wanted)
        assert [one.text for one in found] == [one.text for one in expected]


def test_lines_that_name_their_languages(
    compiled_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = with_prompt(compiled_bundle, SOURCE, tmp_path / "source")
    lines = [">>deu<< the cat", "", ">>nld<< the cat"]
    expected = Translator(bundle, threads=1).translate(lines)
    monkeypatch.setenv(native.VARIABLE, "none")
    plain = Translator(bundle, threads=1)
    assert [one.text for one in plain.translate(lines)] == [one.text for one in expected]
    with pytest.raises(OptionError, match=r"line 2 .* does not begin with a language"):
        plain.translate([lines[0], "the cat"])


REFUSED: dict[str, Callable[[Translator], object]] = {
    "sampling": lambda t: t.translate("a", SearchOptions(beam_size=1, sampling_top_k=5)),
    "alternatives": lambda t: t.translate("a", SearchOptions(alternatives=3)),
    "loop guard": lambda t: t.translate("a", SearchOptions(loop_guard=True)),
    "marked tokens": lambda t: t.translate("a", SearchOptions(disable_unk=True)),
    "attention": lambda t: t.translate("a", SearchOptions(return_attention=True)),
    "tokens": lambda t: t.translate_ids([[7]], SearchOptions(loop_guard=True)),
    "constraints": lambda t: t.translate("a", constraints=["b"]),
    "markup": lambda t: t.translate("<b>a</b>", markup="html"),
    "alignments": lambda t: t.translate("a", alignments=True),
    "split": lambda t: t.translate("a", split_sentences="en"),
    "document": lambda t: t.translate_document("a", split_sentences=False),
    "stream": lambda t: t.translate_iter([], alignments=True),
    "long line": lambda t: t.translate("the cat runs. " * 60),
    "scores": lambda t: t.score("a", "b"),
    "check": lambda t: t.check(SearchOptions(disable_unk=True)),
    "words": lambda t: t.words(t.translate("a").hypotheses[0]),
    "service": TranslationService,
    "terminology": lambda t: t.translate("a", terminology=Glossary.parse(["a\tb"], "terms")),
}


@pytest.mark.parametrize("feature", REFUSED)
def test_what_needs_the_library_names_the_command_that_builds_it(
    plain: Translator, feature: str
) -> None:
    with pytest.raises(BackendError, match=r"scripts/build_library\.sh"):
        REFUSED[feature](plain)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.translate_ids([[9999]]), InputError),
        (lambda t: t.translate_ids([[5]], None, [[9999]]), InputError),
        (lambda t: t.translate("a", SearchOptions(beam_size=200)), OptionError),
        (lambda t: t.translate("a", SearchOptions(target_language="xx")), OptionError),
        (lambda t: t.translate("a", SearchOptions(max_length=2), "the cat runs"), OptionError),
        (lambda t: t.translate("a", SearchOptions(max_length=2000)), OptionError),
        (lambda t: t.translate("a", SearchOptions(min_length=2000)), OptionError),
        (lambda t: t.translate("a", SearchOptions(max_extra_length=2000)), OptionError),
    ],
)
def test_wrong_calls(
    plain: Translator, call: Callable[[Translator], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(plain)


def test_an_error_of_onnxruntime_ends_the_call_and_not_the_translator(
    plain: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = plain.translate(LINES)

    def failing(*_: object) -> None:
        raise RuntimeError("out of memory for 7 tensors")

    with monkeypatch.context() as patch:
        patch.setattr(ort.InferenceSession, "run_with_iobinding", failing)
        with pytest.raises(BackendError, match=r"7 tensors.*batch_tok") as caught:
            plain.translate(LINES)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert plain.translate(LINES) == right
