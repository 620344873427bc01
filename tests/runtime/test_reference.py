"""Reference implementation: scripted steps, step inputs, and batches.

Scripted graphs (support/scripted.py) tell every beam's past from the caches alone, so that a slot
lost on the way is an error, and what is found can be held against PyTorch's beam search.
"""

from __future__ import annotations

import itertools
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
    END,
    START,
    Script,
    ScriptedGraphs,
    ScriptedModel,
    random_script,
)
from support.translations import assert_same, bits, random_sources

from translate_trt.export.contract import GraphLayout
from translate_trt.runtime import TranslationService, Translator, native
from translate_trt.runtime.bundle.contract import NEXT
from translate_trt.runtime.errors import BackendError, InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Arrays, Reference, Sentence
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

# ---- batches of sentences that follow scripts ----

BEAMS, LONGEST = 3, 14
SHARED = GraphLayout()
STATIC = GraphLayout(beams=BEAMS, slots=BEAMS * LONGEST)
OPTIONS = SearchOptions(beam_size=BEAMS, num_hypotheses=BEAMS, max_length=LONGEST)

LAYOUTS = pytest.mark.parametrize("layout", [SHARED, STATIC], ids=["shared", "static"])


def scripts_of(count: int) -> list[Script]:
    return [random_script(seed, 19) for seed in range(count)]


def sentences_of(count: int, seed: int = 0, options: SearchOptions = OPTIONS) -> list[Sentence]:
    """Sentence i follows script i; sources of all lengths, prefixes of none to three tokens."""
    rng, made = random.Random(seed), []
    for index in range(count):
        source = [
            4 + index,
            *(rng.randrange(4, 19) for _ in range(rng.choice((0, 1, 3, 3, 5, 9, 9, 30)))),
        ]
        prefix = [rng.randrange(5, 19) for _ in range(rng.randrange(4))]
        made.append(Sentence(source, prefix, options))
    return made


def translate(
    graphs: ScriptedGraphs,
    sentences: Sequence[Sentence],
    batch_tokens: int = 10_000,
) -> list[list[Hypothesis]]:
    search = Reference(graphs, graphs.contract, START, END, batch_tokens=batch_tokens)
    return search.translate(sentences)


def by_pytorch(scripts: Sequence[Script], sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
    """Of PyTorch's search, which has no caches at all on scripts; each sentence alone."""
    found: list[list[Hypothesis]] = []
    for one in sentences:
        options = SearchOptions(
            **{name: getattr(one.options, name) for name in ("beam_size", "num_hypotheses",
               "max_length", "min_length", "length_penalty", "length_penalty_form",
               "early_stopping")}
        )  # fmt: skip
        model = cast(Transformer, ScriptedModel(scripts))
        found += beam_search(model, [one.tokens], options, [one.prefix])
    return found


def assert_right(
    found: list[list[Hypothesis]], scripts: Sequence[Script], sentences: Sequence[Sentence]
) -> None:
    assert len(found) == len(sentences)
    assert_same(found, by_pytorch(scripts, sentences))


@LAYOUTS
@pytest.mark.parametrize("batch_tokens", [1, 40, 400])
def test_any_batches_find_what_pytorch_finds(layout: GraphLayout, batch_tokens: int) -> None:
    scripts, sentences = scripts_of(24), sentences_of(24)
    graphs = ScriptedGraphs(scripts, layout=layout)
    assert_right(translate(graphs, sentences, batch_tokens), scripts, sentences)
    assert sum(count for count, _ in graphs.encoded) == 24
    assert all(n * s <= batch_tokens or n == 1 for n, s in graphs.encoded)
    assert (max(n for n, _ in graphs.encoded) > 1) == (batch_tokens > 1)
    assert {size[:2] for size in graphs.sizes} == set(graphs.encoded)


#: All that sentences of a batch may differ in.
MIXED = [
    SearchOptions(beam_size=BEAMS, length_penalty=alpha, length_penalty_form=form,
                  early_stopping=early, min_length=minimum, max_length=maximum,
                  num_hypotheses=count)
    for (alpha, form), early, (minimum, maximum), count in itertools.product(
        [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "length"), (3.0, "length")], [False, True],
        [(0, LONGEST), (5, 9)], [1, BEAMS],
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "batch_tokens"), [(SHARED, 40), (STATIC, 400)], ids=["shared", "static"]
)
def test_sentences_of_mixed_options_are_found_as_alone(
    layout: GraphLayout, batch_tokens: int
) -> None:
    scripts = scripts_of(len(MIXED))
    random.Random(batch_tokens).shuffle(scripts)
    sentences = [
        Sentence(one.tokens, one.prefix, options)
        for one, options in zip(sentences_of(len(MIXED), seed=2), MIXED, strict=True)
    ]
    graphs = ScriptedGraphs(scripts, layout=layout)
    found = translate(graphs, sentences, batch_tokens)
    assert max(n for n, _, _ in graphs.sizes) > 1
    for one, together in zip(sentences, found, strict=True):
        assert translate(ScriptedGraphs(scripts, layout=layout), [one]) == [together]
    assert_same(found, by_pytorch(scripts, sentences))


# ---- caches that grow, slots that are used again ----


@pytest.mark.parametrize("beams", [4, 8])
def test_a_long_search_needs_few_slots(beams: int) -> None:
    steps = 120
    options = SearchOptions(
        beam_size=beams, num_hypotheses=beams, min_length=steps - 2, max_length=steps
    )
    scripts = [random_script(seed, 2 * beams + 3) for seed in range(3)]
    sentences = [Sentence([4 + index], (), options) for index in range(3)]
    graphs = ScriptedGraphs(scripts)
    found = translate(graphs, sentences)
    assert graphs.steps >= steps - 2
    assert max(size[2] for size in graphs.sizes) < 0.6 * beams * steps
    # A cache is never much larger than the most that one of its sentences needed.
    assert graphs.sizes[-1][2] <= max(graphs.used) + beams + 16
    assert_same(found, by_pytorch(scripts, sentences))


def test_a_row_that_is_done_needs_no_more_slots() -> None:
    class Full(ScriptedGraphs):
        """Tell of every row that is done that its slots are taken."""

        def step(self, inputs: Arrays) -> Arrays:
            outputs = super().step(inputs)
            return outputs | {"full": outputs[NEXT + "done"]}

    graphs, options = Full(scripts_of(6)), SearchOptions(beam_size=2, max_length=7)
    translate(graphs, [Sentence([4 + index], (), options) for index in range(6)])
    assert {size[2] for size in graphs.sizes} == {16}


def test_more_beams_than_first_slots() -> None:
    options = SearchOptions(beam_size=40, num_hypotheses=40, max_length=4)
    scripts = [random_script(seed, 90) for seed in range(2)]
    sentences = [Sentence([4 + index], (), options) for index in range(2)]
    graphs = ScriptedGraphs(scripts)
    assert_same(translate(graphs, sentences), by_pytorch(scripts, sentences))
    assert graphs.sizes[0][2] == 48


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
        translate(graphs, sentences_of(9), 1)
    assert caught.value is error
    assert len(graphs.encoded) == 1  # no other batch begins


def test_probabilities_that_are_not_finite_are_an_error() -> None:
    def nothing(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        return np.full(19, np.nan, np.float32)

    graphs = ScriptedGraphs([*scripts_of(2), nothing])
    sentences = [Sentence([4 + index, 9, 9], (), OPTIONS) for index in range(3)]
    with pytest.raises(BackendError, match=r"probabilities.*3 source"):
        translate(graphs, sentences, 4)


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
