"""The public API on a real bundle."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import pickle
import shutil
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from support.bad_bundles import edit
from support.bundles import NAN_WORD
from support.translations import assert_same, random_sources

from translate_trt.runtime import Hypothesis, SearchOptions, Translator, native
from translate_trt.runtime.bundle.manifest import hash_file, read_manifest, write_manifest
from translate_trt.runtime.errors import (
    BackendError,
    BundleError,
    InputError,
    OptionError,
    TranslateTrtError,
)

LINES = ["the cat runs.", "", "a dog eats green", "   ", "Haus Hund läuft.", "the big tree sleeps"]


def test_one_translation_per_line_in_order(translator: Translator) -> None:
    together = translator.translate(LINES)
    assert len(together) == len(LINES)
    assert [bool(translation.text) for translation in together] == [bool(x.strip()) for x in LINES]
    assert translator.translate(LINES[::-1])[::-1] == together
    assert together[1].segment_count == 0
    assert together[0].segment_count == 1


def test_nothing_to_translate(compiled_bundle: Path) -> None:
    translator = Translator(compiled_bundle, threads=1)
    assert translator.core is not None
    assert translator.translate([]) == []
    assert translator.translate_ids([[], []])[1][0].tokens == ()
    assert [t.text for t in translator.translate(["", " ", "\u2028"])] == ["", "", ""]
    assert translator.core.statistics().steps == 0


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(num_hypotheses=3),
        SearchOptions(beam_size=2, alternatives=3),
        SearchOptions(beam_size=1, sampling_top_k=5, seed=7),
    ],
    ids=["n best", "alternatives", "samples"],
)
def test_equal_lines_are_translated_once(compiled_bundle: Path, options: SearchOptions) -> None:
    lines = ["the cat", "a dog", "the cat", "the cat"]
    with Translator(compiled_bundle, "onnx-fp32", threads=1) as translator:
        alone = [translator.translate([line], options)[0] for line in lines]
        assert translator.core is not None
        before = translator.core.statistics()
        assert translator.translate(lines, options) == alone
        after = translator.core.statistics()
    searched = after.sentences - before.sentences - (after.repeated - before.repeated)
    assert searched == 2 * (1 + options.alternatives)
    assert after.repeated > before.repeated == 0


def test_a_cache_answers_what_was_translated_before(compiled_bundle: Path) -> None:
    options = SearchOptions(num_hypotheses=2)
    with Translator(compiled_bundle, "onnx-fp32", threads=1, cache_mib=1) as translator:
        assert translator.core is not None
        first = translator.translate(LINES, options)
        steps = translator.core.statistics().steps
        assert translator.translate(LINES[::-1], options)[::-1] == first
        assert translator.core.statistics().steps == steps
        translator.translate(LINES[0], SearchOptions(num_hypotheses=1))
        assert translator.core.statistics().steps > steps
        copy = pickle.loads(pickle.dumps(translator))
        assert copy.translate(LINES, options) == first
    with pytest.raises(OptionError):
        Translator(compiled_bundle, cache_mib=-1)


SEVERAL: Any = pytest.mark.parametrize(
    ("target", "workers"), [("onnx-fp32", 1), ("onnx-fp32", 3), ("onnx-int8", 2)]
)


@SEVERAL
def test_eight_threads_share_a_translator(compiled_bundle: Path, target: str, workers: int) -> None:
    shared = Translator(compiled_bundle, target, threads=1, workers=workers, batch_tokens=100)
    sources = random_sources(40, seed=9, longest=20)
    options = [
        SearchOptions(num_hypotheses=2),
        SearchOptions(beam_size=2, return_attention=True),
        SearchOptions(beam_size=6, max_length=9, num_hypotheses=3),
    ]
    right = [shared.translate_ids(sources, one) for one in options]
    start = threading.Barrier(8)

    def call(number: int) -> list[list[Hypothesis]]:
        start.wait(60)
        return shared.translate_ids(sources, options[number % 3])

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(call, range(8))):
            assert_same(found, right[number % 3])


def test_threads_are_shared_out_among_workers(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(*_: object, threads: int, workers: int | None, **more: object) -> None:
        raise BackendError(f"{threads} {workers}")

    monkeypatch.setattr("translate_trt.runtime.loaded_target.Core", load)
    monkeypatch.setattr("translate_trt.runtime.cores.available_cores", lambda: 12)
    for settings, used in (
        ({}, "12 None"), ({"workers": 4}, "3 4"), ({"workers": 40}, "1 40"),
        ({"workers": 4, "threads": 2}, "2 4"),
    ):  # fmt: skip
        with pytest.raises(BackendError, match=f"^{used}$"):
            Translator(compiled_bundle, **settings)  # type: ignore[arg-type]
    assert caplog.text == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_with_nan_is_told_once(
    nan_bundle: Path, compiled_bundle: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    translator = Translator(nan_bundle, threads=1, workers=workers)
    bad = f"the {NAN_WORD} runs."
    for lines, options in (([bad], None), (["the cat", bad] * 9, SearchOptions(beam_size=1))):
        with pytest.raises(BackendError, match="finite probabilities"):
            translator.translate(lines, options)
    with pytest.raises(BackendError, match="1 source"):
        translator.translate_ids([translator.tokenizer.encode_source(NAN_WORD)])
    assert caplog.text == ""  # nothing is tried again, since it would be the same
    right = Translator(compiled_bundle, threads=1).translate(["the cat"])
    assert translator.translate(["the cat"])[0].text == right[0].text


def test_a_long_line_goes_in_pieces(translator: Translator) -> None:
    limit = translator.manifest.limits.max_source_length
    line = "the cat runs. a dog sleeps. " * 60
    options = SearchOptions(beam_size=2, num_hypotheses=2)
    (translation,) = translator.translate([line], options)
    assert translation.segment_count > 1
    assert len(translator.tokenizer.encode_source(line)) > limit
    best, second = translation.hypotheses
    for one in (best, second):  # joined rank by rank
        assert one.score == pytest.approx(sum(segment.score for segment in one.segments))
        assert one.text == " ".join(
            filter(None, (translator.tokenizer.decode(segment.tokens) for segment in one.segments))
        )
    for ours, theirs in zip(best.segments, second.segments, strict=True):
        assert (ours.truncated, -ours.score) <= (theirs.truncated, -theirs.score)


def test_a_prefix_begins_the_translation(translator: Translator) -> None:
    line = "the cat runs. a dog sleeps. " * 20
    found = translator.translate(["the dog", line], target_prefixes=["Haus", "Hund"])
    assert found[0].text.startswith("Haus")
    assert found[1].text.startswith("Hund")
    tokens = translator.tokenizer.encode_target("Hund")
    begins = [
        segment.tokens[: len(tokens)] == tuple(tokens)
        for segment in found[1].hypotheses[0].segments
    ]
    assert begins[0]
    assert not all(begins)


@pytest.mark.parametrize(
    ("sources", "prefixes", "options", "error", "place"),
    [
        ([[5], [9999]], None, {}, InputError, "source 1"),
        ([[5], [2**40]], None, {}, InputError, "source 1"),
        ([[-1]], None, {}, InputError, "source 0"),
        ([[5] * 48], None, {}, InputError, "--max-source-length"),
        ([[5]], [[5, 3]], {}, InputError, "source 0"),
        ([[5]], [[5], [6]], {}, InputError, "prefixes"),
        ([[5]], [[5] * 4], {"max_length": 4}, OptionError, "max_length"),
        ([[5]], None, {"max_length": 99}, OptionError, "max_length"),
        ([[5]], None, {"max_extra_length": 51}, OptionError, "max_extra_length"),
        ([[5]], None, {"min_length": 99}, OptionError, "min_length"),
        ([[5]], None, {"beam_size": 200}, OptionError, "beam_size"),
        ([[5]], None, {"target_language": "xx"}, OptionError, "target_language"),
        (None, None, {}, InputError, "sources"),
        pytest.param(b"abc", None, {}, InputError, "sources", id="bytes"),
        ([5, 6], None, {}, InputError, "source 0"),
        (["the"], None, {}, InputError, "source 0"),
        ([[5], b"the"], None, {}, InputError, "source 1"),
        ([[5, 2.5]], None, {}, InputError, "source 0"),
        ([[5]], [["a"]], {}, InputError, "source 0"),
        ([[5]], [5], {}, InputError, "source 0"),
    ],
)
def test_wrong_tokens_and_options(
    translator: Translator,
    sources: Any,
    prefixes: Any,
    options: dict[str, Any],
    error: type[Exception],
    place: str,
) -> None:
    with pytest.raises(error, match=place):
        translator.translate_ids(sources, SearchOptions(**options), prefixes)


def test_a_wide_beam_is_warned_of_once(
    compiled_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    translator = Translator(compiled_bundle, threads=1)
    for beams in (64, 65, 66):
        translator.translate("a", SearchOptions(beam_size=beams, max_length=1))
    (message,) = (message for message in caplog.messages if "beam_size" in message)
    assert "beam_size 65 " in message


@pytest.mark.parametrize("name", ["threads", "workers", "batch_tokens"])
def test_numbers_below_one(compiled_bundle: Path, name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is 0"):
        Translator(compiled_bundle, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=f"{name} is '2'; it must be a whole number"):
        Translator(compiled_bundle, **{name: "2"})  # type: ignore[arg-type]


def test_devices_that_are_no_names(compiled_bundle: Path) -> None:
    for device in (0, 1, "", "gpu", "cuda:01", b"cpu"):
        with pytest.raises(OptionError, match="cuda:1"):
            Translator(compiled_bundle, threads=1, device=device)  # type: ignore[arg-type]


# ---- what may be given, and how it comes back ----


def test_wrong_types_are_refused(compiled_bundle: Path, translator: Translator) -> None:
    with pytest.raises(OptionError, match="target is"):
        Translator(compiled_bundle, ["onnx-fp32"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name 1"):
        translator.translate(["a"], names=[3])  # type: ignore[list-item]


def test_one_string_is_one_text(translator: Translator) -> None:
    (expected,) = translator.translate(["the cat runs."])
    assert translator.translate("the cat runs.") == expected
    assert translator.translate("").text == ""
    begun = translator.translate("the dog", None, "Haus")
    assert begun == translator.translate(["the dog"], None, ["Haus"])[0]
    assert begun.text.startswith("Haus")


def test_any_iterable_is_taken(translator: Translator) -> None:
    expected = translator.translate(LINES)
    for lines in (tuple(LINES), iter(LINES), (one for one in LINES), dict.fromkeys(LINES)):
        assert translator.translate(lines) == expected
    prefixes = ["a"] * len(LINES)
    begun = translator.translate(iter(LINES), target_prefixes=iter(prefixes))
    assert begun == translator.translate(LINES, target_prefixes=prefixes)
    ids = [[5, 6, 7], [8], []]
    found = translator.translate_ids(ids)
    for rows in (iter(ids), [np.array(row, np.int32) for row in ids], map(tuple, ids)):
        assert translator.translate_ids(rows) == found


@pytest.mark.parametrize(
    ("lines", "prefixes", "place"),
    [
        (None, None, "lines"),
        (7, None, "lines"),
        (b"the cat", None, "lines"),
        (["a", b"cat"], None, "line 2"),
        (["a", None], None, "line 2"),
        ([["a"]], None, "line 1"),
        ("a", ["b"], "target_prefixes"),
        (["a", "b"], "bb", "target_prefixes"),
        (["a"], ["b", "c"], "2 target prefixes"),
        (["a"], [b"c"], "prefix 1"),
    ],
    ids=["none", "number", "bytes", "bytes-within", "none-within", "list-within", "one-and-many",
         "text-of-prefixes", "lengths", "bytes-as-prefix"],
)  # fmt: skip
def test_what_is_no_text(translator: Translator, lines: Any, prefixes: Any, place: str) -> None:
    with pytest.raises(InputError, match=place):
        translator.translate(lines, None, prefixes)
    with pytest.raises(InputError):
        list(translator.translate_iter(lines, None, prefixes))


def test_options_of_another_type(translator: Translator) -> None:
    for wrong in ({"beam_size": 4}, 4, "greedy"):
        for call in (translator.translate, translator.translate_ids, translator.translate_iter):
            with pytest.raises(OptionError, match="SearchOptions"):
                call([], wrong)  # type: ignore[arg-type, operator]


def test_translations_come_as_they_are_asked_for(translator: Translator) -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for line in itertools.cycle(LINES):
            read += 1
            yield line

    expected = translator.translate(LINES)
    found = translator.translate_iter(lines(), chunk_lines=4)
    assert read == 0
    assert [next(found) for _ in range(4)] == expected[:4]
    assert read == 4
    assert next(found) == expected[4]
    assert read == 8  # of lines without end, and no more
    assert list(translator.translate_iter([])) == []
    assert list(translator.translate_iter(iter(LINES))) == expected


def test_translations_with_prefixes_as_they_are_asked_for(translator: Translator) -> None:
    lines, prefixes = ["the cat", "a dog", "the tree"], ["a", "Haus", ""]
    expected = translator.translate(lines, target_prefixes=prefixes)
    found = translator.translate_iter(lines, None, iter(prefixes), chunk_lines=2)
    assert list(found) == expected
    for wrong, message in (
        (prefixes[:2], "0 target prefixes for 1 lines"),
        ([*prefixes, "x"], "there are more target prefixes than the 3 lines"),
    ):
        with pytest.raises(InputError, match=message):
            list(translator.translate_iter(lines, None, wrong, chunk_lines=2))
    for size in (0, 1.5):
        with pytest.raises(OptionError, match="chunk_lines is"):
            translator.translate_iter(lines, chunk_lines=size)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="string"):
        translator.translate_iter("the cat")
    with pytest.raises(OptionError, match="line 3"):  # of the second chunk
        list(
            translator.translate_iter(
                lines, SearchOptions(max_length=2), ["", "", "the cat runs"], chunk_lines=2
            )
        )


def test_closing(compiled_bundle: Path) -> None:
    with Translator(compiled_bundle, "onnx-int8", threads=1) as translator:
        shown = (
            f"Translator({str(compiled_bundle)!r}, 'onnx-int8', threads=1, workers=1, "
            "batch_tokens=512)"
        )
        assert repr(translator) == shown
        loaded = weakref.ref(translator.core)
        assert translator.translate("the cat").hypotheses
    assert loaded() is None  # and its memory is free
    assert repr(translator) == f"{shown} (closed)"
    translator.close()
    for call in (
        lambda: translator.translate([]),
        lambda: translator.translate_iter(["a"]),
        lambda: translator.translate_ids([[5]]),
        lambda: translator.score([], []),
        lambda: translator.check(SearchOptions()),
        lambda: pickle.dumps(translator),
    ):
        with pytest.raises(TranslateTrtError, match="closed"):
            call()


def test_a_pickled_one_opens_its_bundle_again(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(compiled_bundle.parent)
    translator = Translator(compiled_bundle.name, "onnx-int8", threads=1, batch_tokens=99)
    monkeypatch.chdir("/")
    copy = pickle.loads(pickle.dumps(translator))
    assert copy.target.name == "onnx-int8"
    assert copy._arguments == translator._arguments
    assert copy.translate(LINES) == translator.translate(LINES)


def test_a_tokenizer_that_is_replaced_after_loading(
    compiled_bundle: Path, tmp_path: Path, translator: Translator
) -> None:
    loaded = Translator(shutil.copytree(compiled_bundle, tmp_path / "bundle"), threads=1)
    for entry in loaded.manifest.tokenizer.values():
        entry.locate(tmp_path / "bundle").unlink(missing_ok=True)
    (best,) = loaded.translate("the cat", SearchOptions(beam_size=1)).hypotheses
    assert loaded.words(best) == translator.words(best)


@pytest.fixture
def bundle(compiled_bundle: Path, tmp_path: Path) -> Path:
    """Copy of the bundle, for damage."""
    return Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))


def test_a_bundle_without_attention_says_which_flag(bundle: Path) -> None:
    edit(bundle, lambda m: m["targets"]["onnx-fp32"]["contract"]["results"].pop("attention"))
    plain = Translator(bundle, threads=1)
    for options, arguments in (
        (SearchOptions(return_attention=True), {}),
        (None, {"alignments": True}),
        (None, {"markup": "html"}),
    ):
        for translate in (plain.translate, plain.translate_iter):
            with pytest.raises(OptionError, match="--attention"):
                list(translate(["the dog"], options, **arguments))  # type: ignore[operator]
    assert plain.translate(["the dog"])[0].text


def test_damaged_bundles(compiled_bundle: Path, bundle: Path) -> None:
    with pytest.raises(BundleError, match="onnx-fp32, onnx-int8"):
        Translator(compiled_bundle, "tensorrt-fp16")
    graph = bundle / "targets/onnx-fp32/step.onnx"
    content = graph.read_bytes()
    graph.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(BundleError, match="SHA-256"):
        Translator(bundle)
    Translator(bundle, "onnx-int8")  # its files are whole
    os.truncate(graph, 100)
    with pytest.raises(BundleError, match="100 bytes"):
        Translator(bundle, check_hashes=False)


def test_a_graph_that_is_none(bundle: Path) -> None:
    graph = bundle / "targets/onnx-fp32/encoder.onnx"
    graph.write_bytes(b"\0" * graph.stat().st_size)
    with pytest.raises(BundleError, match=r"cannot load .*encoder\.onnx"):
        Translator(bundle, check_hashes=False)


def test_a_graph_in_the_others_place(bundle: Path) -> None:

    def swap(manifest: dict[str, Any]) -> None:
        files = manifest["targets"]["onnx-fp32"]["files"]
        files["encoder"], files["step"] = files["step"], files["encoder"]

    edit(bundle, swap)
    with pytest.raises(BundleError, match="inputs"):
        Translator(bundle)


def test_a_tokenizer_of_another_model(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat runs", "a dog eats"]),
        model_writer=model,
        vocab_size=16,
        minloglevel=2,
    )
    (bundle / "shared.spm").write_bytes(model.getvalue())
    manifest = read_manifest(bundle)
    tokenizer = dict.fromkeys(("source", "target"), hash_file(bundle, "shared.spm"))
    write_manifest(bundle, dataclasses.replace(manifest, tokenizer=tokenizer))
    with pytest.raises(BundleError, match="16 pieces"):
        Translator(bundle)
    monkeypatch.setenv(native.VARIABLE, "none")
    with pytest.raises(BundleError, match="16 pieces"):
        Translator(bundle)
