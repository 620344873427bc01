"""The Triton model, with a fake of the Python backend."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support import fake_triton
from support.bundles import NAN_WORD
from support.fake_triton import InferenceResponse, Request, TritonError
from support.protobuf_text import parameters, parse

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.native.core import Core
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.admission import Admission, BusyError
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.repository import write_repository
from translate_trt.runtime.serve.triton.serving_options import ServerOptions
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.text.glossary import Entry, Glossary

pytest.importorskip("torch", reason="the export packages are needed")

MODULE = "translate_trt.runtime.serve.triton.model"
METRICS = "translate_trt.runtime.serve.triton.metrics"
ALL = [one.name for one in interface.OUTPUTS]
LINES = ["the cat runs.", "a big dog sleeps under the tree.", "", "Haus", "the river walks."]


class NoWatch:
    """Fake of the watchdog process."""

    def arm(self) -> None:
        pass

    def disarm(self) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    """Install a fake of `triton_python_backend_utils`, which the server provides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", fake_triton)
        for module in (MODULE, METRICS):
            patch.delitem(sys.modules, module, raising=False)
        # It would end these tests; test_triton_server.py kills a server.
        patch.setattr(f"{MODULE}.Watch", NoWatch)
        yield
        for module in (MODULE, METRICS):
            patch.delitem(sys.modules, module, raising=False)


@pytest.fixture(scope="module")
def repository(compiled_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("triton") / "repo"
    options = ServerOptions(max_characters=200, max_cost=20_000)
    write_repository(compiled_bundle, "onnx-int8", path, options)
    return path


def load(repository: Path, kind: str = "CPU", instances: int = 1, **changed: str) -> Any:
    """Load the model from the repository's file, as the server does."""
    home = repository / "translation"
    config = parse((home / "config.pbtxt").read_text())
    given = {**parameters(config), **changed}
    model = runpy.run_path(str(home / "1/model.py"))["TritonPythonModel"]()
    model.initialize(
        {
            "model_config": json.dumps(
                {
                    "parameters": {key: {"string_value": one} for key, one in given.items()},
                    "instance_group": [{"count": instances}],
                }
            ),
            "model_name": "translation",
            "model_instance_name": "translation_0_0",
            "model_repository": str(home),
            "model_version": "1",
            "model_instance_kind": kind,
            "model_instance_device_id": "3",
        }
    )
    return model


@pytest.fixture(scope="module")
def model(repository: Path) -> Iterator[Any]:
    model = load(repository)
    yield model
    model.finalize()


@pytest.fixture(scope="module")
def translator(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, "onnx-int8", threads=1)


def texts(*lines: str | bytes) -> np.ndarray[Any, Any]:
    content = [line.encode() if isinstance(line, str) else line for line in lines]
    return np.array(content, np.object_).reshape(-1, 1)


def request(
    text: Any = None, outputs: Sequence[str] = ALL, timeout: int = 0, **options: Any
) -> Request:
    """A client's request for one line, a list of lines, or arrays of inputs by name."""
    inputs = (
        {}
        if text is None
        else {"TEXT": texts(*([text] if isinstance(text, (str, bytes)) else text))}
    )
    kinds = {one.name: one.data_type for one in interface.INPUTS}
    numpy_kinds = {"INT32": np.int32, "FP64": np.float64, "BOOL": np.bool_, "STRING": np.object_}
    for name, value in options.items():
        array = np.array(value, numpy_kinds[kinds[name]])
        inputs[name] = array if array.ndim == 2 else array.reshape(-1, 1)
    return Request(inputs, outputs, timeout)


def answers(model: Any, requests: Sequence[Request]) -> list[InferenceResponse]:
    """Return the answers to requests that are passed together."""
    assert model.execute(list(requests)) is None
    return [one.sender.response() for one in requests]


def best(response: InferenceResponse) -> list[list[str]]:
    """Return the n best of each line without padding."""
    assert response.error is None, response.error.message
    return [
        [text.decode() for text in row[: count[0]]]
        for row, count in zip(
            response.outputs["TRANSLATION"], response.outputs["COUNT"], strict=True
        )
    ]


def expected(translations: Sequence[Translation]) -> list[list[str]]:
    return [[one.text for one in translation.hypotheses] for translation in translations]


def failure(response: InferenceResponse) -> tuple[int, str]:
    assert response.error is not None
    assert response.outputs == {}
    return response.error.code, response.error.message


def test_types_and_shapes_are_those_of_the_configuration(model: Any) -> None:
    (response,) = answers(model, [request(LINES[:2], BEAM_SIZE=[3, 3], NUM_HYPOTHESES=[3, 2])])
    kinds = {"STRING": np.object_, "FP64": np.float64, "BOOL": np.bool_, "INT32": np.int32,
             "FP32": np.float32}  # fmt: skip
    for one in interface.OUTPUTS:
        array = response.outputs[one.name]
        assert array.dtype == kinds[one.data_type], one.name
        assert array.ndim == 1 + len(one.shape), one.name
        assert array.shape[0] == 2
        assert all(
            size in (-1, have) for size, have in zip(one.shape, array.shape[1:], strict=True)
        ), one.name


def test_n_best_and_what_fills_them_up(model: Any, translator: Translator) -> None:
    lines = ["the cat runs.", ""]
    asked = {"NUM_HYPOTHESES": [3, 3]}
    response, scores = answers(
        model, [request(lines, **asked), request(lines, outputs=["SCORE"], **asked)]
    )
    assert list(scores.outputs) == ["SCORE"]
    translations = translator.translate(lines, SearchOptions(num_hypotheses=3))
    assert best(response) == expected(translations)
    assert response.outputs["SCORE"][:, 0].tolist() == [one.score for one in translations]
    assert response.outputs["TRUNCATED"][:, 0].tolist() == [
        one.hypotheses[0].truncated for one in translations
    ]
    assert response.outputs["COUNT"].tolist() == [[3], [1]]
    assert response.outputs["TRANSLATION"][1].tolist() == [b"", b"", b""]
    assert response.outputs["SCORE"][1].tolist() == [0.0, interface.NO_SCORE, interface.NO_SCORE]
    assert (response.outputs["TRANSLATION_TOKENS"][1] == interface.NO_TOKEN).all()


def test_tokens_in_and_out(model: Any, translator: Translator) -> None:
    sources = [translator.tokenizer.encode_source(line) for line in LINES]
    width = max(map(len, sources))
    rows = [source + [-1] * (width - len(source)) for source in sources]
    (response,) = answers(model, [request(TOKENS=rows, NUM_HYPOTHESES=[2] * 5)])
    for row, hypotheses in enumerate(
        translator.translate_ids(sources, SearchOptions(num_hypotheses=2))
    ):
        for column, one in enumerate(hypotheses):
            tokens = response.outputs["TRANSLATION_TOKENS"][row, column]
            assert tuple(tokens[tokens != -1].tolist()) == one.tokens
            assert response.outputs["SCORE"][row, column] == one.score
            text = translator.tokenizer.decode(one.tokens)
            assert response.outputs["TRANSLATION"][row, column].decode() == text


def test_options_of_each_request_and_sentence(model: Any, translator: Translator) -> None:
    options = {
        "BEAM_SIZE": 2, "LENGTH_PENALTY": 1.5, "LENGTH_PENALTY_FORM": b"length",
        "EARLY_STOPPING": True, "MAX_LENGTH": 7, "MIN_LENGTH": 3, "NUM_HYPOTHESES": 2,
        "SOURCE_LANGUAGE": b"en", "TARGET_LANGUAGE": b"de", "LOOP_GUARD": True,
        "ALTERNATIVES": 0, "MIN_ALTERNATIVE_PROB": 0.1, "REPETITION_PENALTY": 1.2,
        "NO_REPEAT_NGRAM_SIZE": 2, "SUPPRESS_SEQUENCES": b"7, 12 9", "DISABLE_UNK": True,
        "SAMPLING_TOP_K": 1, "SAMPLING_TOP_P": 1.0, "SAMPLING_TEMPERATURE": 1.0, "SEED": 3,
        "MAX_EXTRA_LENGTH": 9,
    }  # fmt: skip
    assert options.keys() == {one.name for one in interface.OPTIONS.values()}
    other, plain, mixed = answers(model,
        [request("the cat runs.", **options), request("the cat runs."),
         request(["Haus", "Haus"], BEAM_SIZE=[1, 4], MIN_LENGTH=[1, 9])]
    )  # fmt: skip
    asked = SearchOptions(
        2, 1.5, "length", True, 7, 3, 2, repetition_penalty=1.2, no_repeat_ngram_size=2,
        suppress_sequences="7, 12 9", disable_unk=True, seed=3, max_extra_length=9,
    )  # fmt: skip
    assert best(other) == expected(translator.translate(["the cat runs."], asked))
    assert best(plain) == expected(translator.translate(["the cat runs."]))
    assert best(mixed) == [
        *expected(translator.translate(["Haus"], SearchOptions(beam_size=1, min_length=1))),
        *expected(translator.translate(["Haus"], SearchOptions(min_length=9))),
    ]


TERMS = "# our terms\ncat\tHund\nhouse\tHaus\tthe house"
GLOSSARY = Glossary([Entry("cat", ("Hund",)), Entry("house", ("Haus", "the house"))])
TAGGED = "the <b>cat</b> runs, {name}."
PAGE = "<h1>The cat</h1>\n<p>A <b>dog</b> runs. A tree.</p>\n"
#: Sentences, inputs of each, and arguments of the translator that say the same.
FEATURES: dict[str, tuple[list[str], dict[str, Any], list[dict[str, Any]]]] = {
    "alternatives": (
        ["the cat runs.", "Haus"],
        {"TARGET_PREFIX": texts("Hund the", ""), "ALTERNATIVES": [4, 0]},
        [{"options": SearchOptions(alternatives=4), "target_prefixes": "Hund the"}, {}],
    ),
    "constraints": (
        ["the cat runs.", "Haus"],
        {"CONSTRAINTS": texts("Hund\tthe dog", "")},
        [{"constraints": ["Hund", "the dog"]}, {}],
    ),
    "terminology": (
        ["the cat runs.", "the house under the tree", "the cat runs."],
        {"TERMINOLOGY": texts(TERMS, TERMS, "")},
        [{"terminology": GLOSSARY}, {"terminology": GLOSSARY}, {}],
    ),
    "markup": (
        [TAGGED, "a <i>dog</i>", "<b>", "&lt; the cat"],
        {"MARKUP": texts("html", "xml", "", "text")},
        [{"markup": "html"}, {"markup": "xml"}, {}, {"markup": "text"}],
    ),
    "text without letters": (
        ["12", "12", "a@b.org"],
        {"TRANSLATE_ALL": [0, 1, 0]},
        [{}, {"translate_all": True}, {}],
    ),
    "sentences and documents": (
        ["The cat runs. A dog sleeps.", "- The cat runs.\n\n- A dog.\n", PAGE],
        {"SPLIT_SENTENCES": [1, 0, 1], "DOCUMENT": [0, 1, 1], "MARKUP": texts("", "", "html")},
        [
            {"split_sentences": True},
            {"document": True, "split_sentences": False},
            {"document": True, "markup": "html"},
        ],
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_of_each_sentence(model: Any, translator: Translator, name: str) -> None:
    if name.startswith("sentences"):
        pytest.importorskip("sentencex")
        pytest.importorskip("langcodes")
    lines, inputs, arguments = FEATURES[name]
    (response,) = answers(model, [request(lines, **inputs)])
    methods = {True: translator.translate_document, False: translator.translate}
    right = [
        methods["document" in given](line, **{k: v for k, v in given.items() if k != "document"})
        for line, given in zip(lines, arguments, strict=True)
    ]
    assert best(response) == expected(right)


def test_errors_of_sentences(model: Any, translator: Translator) -> None:
    lines = ["the cat runs.", "<b>a", b"\xff", "Haus", "a", "a"]
    inputs: dict[str, Any] = {
        "MARKUP": texts("", "xml", "", "", "", ""),
        "CONSTRAINTS": texts("", "", "", "Hund", "", ""),
        "BEAM_SIZE": [4, 4, 4, 1, 99, 4],
        "NUM_HYPOTHESES": [2, 1, 1, 1, 1, 1],
    }
    (response,) = answers(model, [request(lines, RETURN_ERRORS=[1] * 6, **inputs)])
    two, one = translator.translate(lines[0], SearchOptions(num_hypotheses=2)), "a"
    right = expected([two, translator.translate(one)])
    assert best(response) == [right[0], [], [], [], [], right[1]]
    first, *errors, last = (error.decode() for error in response.outputs["ERROR"][:, 0])
    assert first == last == ""
    for error, message in zip(
        errors, ("sentence 1 is not", "sentence 2 is not", "sentence 3 has", "beam_size 99"),
        strict=True,
    ):  # fmt: skip
        assert message in error
    assert (response.outputs["SCORE"][1:5] == interface.NO_SCORE).all()
    # An error that its sentence does not return fails the request.
    (refused,) = answers(model, [request(lines, RETURN_ERRORS=[1] * 4 + [0, 1], **inputs)])
    assert "beam_size 99" in failure(refused)[1]
    (every,) = answers(model, [request(["<b>"], MARKUP=texts("xml"), RETURN_ERRORS=1)])
    assert every.outputs["COUNT"].tolist() == [[0]]
    # What concerns the whole request does, too.
    (refused,) = answers(model, [request(["a" * 200] * 30, RETURN_ERRORS=[1] * 30)])
    assert "the request costs" in failure(refused)[1]


def test_given_translations_are_scored(model: Any, translator: Translator) -> None:
    lines, given = ["the cat runs.", "a big dog", "Haus"], ["Haus", "Hund the", ""]
    options = {"TARGET_PREFIX": texts(*given), "SCORE_PREFIX": [1, 1, 0], "BEAM_SIZE": [1, 9, 4]}
    (response,) = answers(model, [request(lines, **options)])
    scored = translator.score(lines[:2], given[:2])
    (plain,) = translator.translate(lines[2:])
    found = [*scored, plain.hypotheses[0]]
    assert best(response) == [[one.text] for one in found]
    scores, log_probs = (response.outputs[name] for name in ("SCORE", "TOKEN_LOG_PROBS"))
    assert scores[:, 0] == pytest.approx([one.score for one in found], abs=0.01)
    for row, one in enumerate(found):
        rest = [interface.NO_LOG_PROB] * (log_probs.shape[2] - len(one.token_log_probs))
        assert log_probs[row, 0] == pytest.approx([*one.token_log_probs, *rest], abs=0.01)


def test_alignments_and_confidences(model: Any, translator: Translator) -> None:
    asked: dict[str, Any] = {"RETURN_ALIGNMENTS": [1, 1, 1, 0, 1], "RETURN_WORDS": [1, 0, 1, 1, 0]}
    prefixes = ["Hund the"] * len(LINES)  # by itself, the model hardly writes a word
    each = {"NUM_HYPOTHESES": [3] * len(LINES), "TARGET_PREFIX": texts(*prefixes)}
    response, plain = answers(model, [request(LINES, **each, **asked), request(LINES)])
    found = translator.translate(LINES, SearchOptions(num_hypotheses=3), prefixes, alignments=True)
    assert best(response) == expected(found)
    alignments, confidences = (
        response.outputs[name] for name in ("ALIGNMENTS", "WORD_CONFIDENCES")
    )
    for row, translation in enumerate(found):
        for rank, one in enumerate(translation.hypotheses):
            assert one.alignment is not None
            pharaoh = one.alignment.pharaoh() if asked["RETURN_ALIGNMENTS"][row] else ""
            assert alignments[row, rank].decode() == pharaoh
            words = [word.confidence for word in translator.words(one)]
            words = words if asked["RETURN_WORDS"][row] else []
            rest = [interface.NO_CONFIDENCE] * (confidences.shape[2] - len(words))
            # Their last digits may depend on the batch.
            assert confidences[row, rank].tolist() == pytest.approx([*words, *rest], abs=0.01)
    assert any(alignments.reshape(-1))
    assert not any(plain.outputs["ALIGNMENTS"].reshape(-1))
    assert plain.outputs["WORD_CONFIDENCES"].shape == (len(LINES), 1, 0)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (["ok", b"a\xff"], {}, "sentence 1 is not valid UTF-8 at byte 1"),
    ("x" * 201, {}, "sentence 0 has 201 characters, more than this"),
    (None, {"BEAM_SIZE": 2}, "has neither TEXT nor TOKENS; send one"),
    ("a", {"TOKENS": [[5]]}, "has both TEXT and TOKENS"),
    ("a", {"BEAM_SIZE": 17}, "beam_size 17 is more than this"),
    ("a", {"LENGTH_PENALTY_FORM": b"\xff"}, "choose one of gnmt, length"),
    (["a", "b"], {"BEAM_SIZE": [2, -1]}, "beam_size is -1"),
    (None, {"TOKENS": [[5, 99999]]}, "sentence 0 has token 99999, outside"),
    (["a", "b"], {"MIN_LENGTH": [1, 10**9]}, "min_length 1000000000 is more than the"),
    (
        ["x" * 200] * 6 + ["x" * 100] * 6, {"BEAM_SIZE": [16] * 12},
        "costs 28800 (characters times beam_size of 12 sentences), more than this server's "
        "maximum of 20000; send at most 6 of them in a request",
    ),
    ("a", {"ALTERNATIVES": 17}, "alternatives 17 is more than this"),
    ("a", {"TARGET_PREFIX": texts(b"\xff")}, "target prefix of sentence 0 is not valid UTF-8"),
    ("a", {"SCORE_PREFIX": 1, "TARGET_PREFIX": texts("zq" * 99)}, "end symbol"),
    ("a", {"TERMINOLOGY": texts("cat")}, "glossary of sentence 0, line 1 has no target phrase"),
    ("<b>", {"MARKUP": texts("xml")}, "sentence 0 is not well-formed XML"),
    ("<b>", {"MARKUP": texts("html"), "RETURN_WORDS": 1}, "leave RETURN_WORDS out"),
    (None, {"TOKENS": [[5]], "TERMINOLOGY": texts(TERMS)}, "leave terminology out"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "inputs", "message"), BAD)
def test_a_bad_request_fails_alone(
    model: Any,
    translator: Translator,
    caplog: pytest.LogCaptureFixture,
    text: Any,
    inputs: dict[str, Any],
    message: str,
) -> None:
    tokens = translator.tokenizer.encode_source("a")
    first, bad, last = answers(
        model, [request("the cat runs."), request(text, **inputs), request(TOKENS=[tokens])]
    )
    code, said = failure(bad)
    assert (code, message in said) == (TritonError.INVALID_ARG, True), said
    assert best(first) == expected(translator.translate(["the cat runs."]))
    assert best(last) == expected(translator.translate(["a"]))
    assert caplog.text == ""  # nothing was tried and failed


class Held:
    """Keep all translations of services from their futures, until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._free = threading.Semaphore(0), threading.Event()
        real = TranslationService._finish

        def finish(service: TranslationService, key: int, line: Any) -> None:
            self.begun.release()
            assert self._free.wait(60)
            real(service, key, line)

        monkeypatch.setattr(TranslationService, "_finish", finish)

    def release(self) -> None:
        self._free.set()


def test_requests_cancelled_before_and_meanwhile(
    repository: Path, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = load(repository, workers="1"), Held(monkeypatch)
    before, runs, waits, other = request("a"), request("b"), request(["c", "d"]), request("e")
    before.cancelled.set()
    model.execute([before, runs])
    held.begun.acquire()
    model.execute([waits, other])
    runs.cancelled.set()
    waits.cancelled.set()
    codes = [failure(one.sender.response())[0] for one in (before, runs, waits)]
    assert codes == [TritonError.CANCELLED] * 3
    held.release()
    found = best(other.sender.response())
    model.finalize()
    assert found == expected(translator.translate(["e"]))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that comes soon, or fail."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_execute_refuses_what_there_is_no_capacity_for_and_the_end_answers_all(
    repository: Path, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = load(repository, workers="1", capacity="2"), Held(monkeypatch)
    requests = [request("a"), request("b"), request("c")]
    model.execute(requests)  # returns
    code, said = failure(requests[2].sender.response())
    assert code == TritonError.UNAVAILABLE
    assert "capacity" in said
    held.release()
    assert best(requests[0].sender.response()) == expected(translator.translate(["a"]))
    wait_for(lambda: model._admission.requests < 2, "the answered one to leave")
    again = request("c")
    model.execute([again])
    model.finalize()
    monkeypatch.undo()
    assert [best(one.sender.response()) for one in (requests[1], again)] == [
        expected([one]) for one in translator.translate(["b", "c"])
    ]


def test_a_request_may_cost_half_of_what_is_left() -> None:
    admission = Admission(requests=4, cost=100)
    admission.admit(900)  # alone, counted as half of the budget
    with pytest.raises(BusyError, match=r"request.*cost 26"):
        admission.admit(26)
    admission.admit(25)
    admission.leave(900)
    admission.admit(37)
    admission.admit(1)
    admission.admit(1)
    with pytest.raises(BusyError, match="capacity of 4 requests"):
        admission.admit(1)


def test_a_request_whose_time_is_up(
    repository: Path, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = load(repository, workers="1"), Held(monkeypatch)
    runs, waits, patient = (
        request("a", timeout=1000), request(["b", "c"], timeout=1000), request("d", timeout=10**9)
    )  # fmt: skip
    model.execute([runs])
    held.begun.acquire()
    model.execute([waits, patient])
    for one in (runs, waits):
        code, said = failure(one.sender.response())
        assert code == TritonError.UNAVAILABLE
        assert "microseconds" in said
    held.release()
    found = best(patient.sender.response())
    model.finalize()
    assert found == expected(translator.translate(["d"]))


def test_metrics(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton.MetricFamily.ALL.clear()
    model = load(repository, capacity="1")
    (first,) = answers(model, [request(["the cat runs.", "Haus"])])
    wait_for(lambda: not model._admission.requests, "it to leave")
    wait_for(lambda: model._service.statistics().steps > 0, "a step to be counted")
    held = Held(monkeypatch)
    answers_to = [request("x" * 201), request("a", timeout=1), request("b")]
    gone = request("c")
    gone.cancelled.set()
    model.execute([answers_to[0], gone, *answers_to[1:]])
    for one in (gone, *answers_to):
        failure(one.sender.response())
    held.release()
    model.finalize()
    found = fake_triton.MetricFamily.ALL
    outcomes = {
        one.labels["outcome"]: one.value for one in found["translate_trt_requests_total"].metrics
    }
    assert outcomes == {
        "success": 1, "refused": 1, "busy": 1, "timeout": 1, "cancelled": 1, "failed": 0,
    }  # fmt: skip
    values = {name: family.metrics[0].value for name, family in found.items()}
    assert values["translate_trt_sentences_total"] in (2, 3)  # "a" may have been translated
    tokens = int((first.outputs["TRANSLATION_TOKENS"] != interface.NO_TOKEN).sum())
    assert values["translate_trt_target_tokens_total"] >= tokens > 0
    assert values["translate_trt_source_tokens_total"] > 2
    assert values["translate_trt_waiting_sentences"] == 0
    assert values["translate_trt_batch_rows_total"] >= values["translate_trt_batch_steps_total"] > 0
    (latency,) = found["translate_trt_request_seconds"].metrics
    assert len(latency.observed) == 1
    assert latency.labels == {
        "model": "translation", "version": "1", "instance": "translation_0_0"
    }  # fmt: skip


def test_an_instance_whose_service_has_failed_ends(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(f"{MODULE}._end_instance", lambda _: ended.set())
    monkeypatch.setattr(TranslationService, "failed", property(lambda _: True))
    model = load(repository)
    assert ended.wait(60)
    model.finalize()


def test_what_the_model_fails_with_fails_alone(nan_bundle: Path, tmp_path: Path) -> None:
    write_repository(nan_bundle, "onnx-fp32", tmp_path / "repo", ServerOptions())
    model = load(tmp_path / "repo")
    first, failed, last = answers(model, [request("a"), request(["b", NAN_WORD]), request("c")])
    assert failure(failed)[0] == TritonError.INTERNAL
    translator = Translator(nan_bundle, "onnx-fp32", threads=1)
    assert best(first) + best(last) == expected(translator.translate(["a", "c"]))
    model.finalize()


def test_scores_are_numbers_that_json_knows(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = Translation((TextHypothesis("", float("-inf")),))
    monkeypatch.setattr(Core, "translations", lambda *_: [impossible])
    (response,) = answers(model, [request(TOKENS=[[5]])])
    assert response.outputs["SCORE"].tolist() == [[interface.NO_SCORE]]


class Asked:
    """Fake of `Translator` that records its arguments."""

    def __init__(self, bundle: Path, target: str, **given: Any) -> None:
        self.bundle, self.given = bundle, given
        self.target = SimpleNamespace(name=target, engine=None)
        self.words: Any = None


def made(monkeypatch: pytest.MonkeyPatch, repository: Path, cores: int = 8, **given: Any) -> Asked:
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "Translator", Asked)
    monkeypatch.setattr(module, "TranslationService", lambda *_, **__: mock.Mock())
    monkeypatch.setattr(module, "Metrics", mock.Mock())
    monkeypatch.setattr(module, "_Responder", mock.Mock())
    monkeypatch.setattr(module, "available_cores", lambda: cores)
    return load(repository, **given)._translator


@pytest.mark.parametrize(
    ("given", "workers", "threads"),
    [
        ({}, 8, 1),
        ({"instances": 2}, 4, 1),
        ({"instances": 2, "threads": "2"}, 2, 2),
        ({"workers": "3", "threads": "5"}, 3, 5),
        ({"instances": 9}, 1, 1),
        ({"kind": "GPU"}, None, 1),  # where batches do not follow the cores
        ({"kind": "GPU", "workers": "3"}, 3, 1),
    ],
)
def test_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch,
    repository: Path,
    given: dict[str, Any],
    workers: int | None,
    threads: int,
) -> None:
    asked = made(monkeypatch, repository, **given).given
    assert (asked["workers"], asked["threads"]) == (workers, threads)


def test_where_and_what(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    asked = made(monkeypatch, repository)
    assert (asked.bundle, asked.target.name) == (repository / "translation/1/bundle", "onnx-int8")
    assert (asked.given["device"], asked.given["trust_code"]) == ("cpu", False)
    assert made(monkeypatch, repository, kind="GPU").given["device"] == "cuda:3"
    assert asked.given["batch_tokens"] is None
    changes = {"bundle": "/elsewhere", "trust_code": "true", "batch_tokens": "99"}
    other = made(monkeypatch, repository, **changes)
    assert (other.bundle, other.given["trust_code"]) == (Path("/elsewhere"), True)
    assert other.given["batch_tokens"] == 99


def test_a_repository_of_another_version(repository: Path) -> None:
    with pytest.raises(BundleError, match=f"format 1, this version reads {interface.FORMAT}"):
        load(repository, format="1")
