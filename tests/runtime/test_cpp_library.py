"""The C and C++ interface of libtranslate_trt: a program gives the results of Python's binding."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bad_bundles import BAD_FOR_THE_CORE, LAYOUTS, edit, spoiled_fields
from support.bundles import NAN_WORD
from support.cpp_library import (
    ROOT,
    SEARCHES,
    Library,
    Probe,
    assert_same_hypothesis,
    assert_same_translations,
    declared,
    exported,
    texts,
)
from support.kernels import LIBRARY_SOURCE
from support.prompts import SOURCE, TARGET, with_prompt
from support.translations import random_sources, rounding

from translate_trt.runtime import SearchOptions, Translator, kernels
from translate_trt.runtime.bundle.manifest import (
    FORMAT_VERSION,
)
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.text.glossary import Glossary

pytestmark = pytest.mark.slow

LINES = [
    "the cat runs.", "", "a dog eats green", "   ", "Haus Hund läuft.", "the big tree sleeps",
    "漢字 \U0001f600 é", "a\0b\tc\x0bd\u2028e", "x" * 300,
    "The cat sleeps under the big tree. A dog walks over the river! " * 8,
]  # fmt: skip
HEADER = ROOT / "runtime/cpp/include/translate_trt/translate_trt.h"
EN_DE = {"source_language": "en", "target_language": "de"}


def test_what_it_does_inside(library: Library) -> None:
    done = library.run("translate_trt_unit_tests")
    assert (done.returncode, done.stdout) == (0, "all passed\n"), done.stderr


@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
def test_arrays_on_a_device_give_the_same_bits(
    library: Library, compiled_bundle: Path, target: str
) -> None:
    text = "the cat runs under a big green tree while the old dog sleeps over the river"
    words = text.split()
    lines = [" ".join(words[i : i + n]) for n in (1, 3, 6, 12) for i in range(10)]
    done = library.run(
        "translate_trt_device_search", str(compiled_bundle), target, str(rounding()),
        stdin="\n".join(lines),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all passed\n")


def test_kernels_one_by_one(library: Library, search_kernels: str) -> None:
    done = library.run("translate_trt_kernel_tests")
    assert done.returncode == 0, done.stderr
    # Of a processor with tiles, those that it uses come after those without.
    assert done.stdout.startswith("all passed:")
    # Reference kernels in plain C++, besides those of the processor.
    name = "plain" if search_kernels == kernels.PORTABLE else search_kernels
    assert done.stdout.endswith(f" {name}\n")


# ---- the same translations ----


def test_searches(probe: Probe, compiled_bundle: Path, shortlist_bundle: Path) -> None:
    loaded = probe.load(shortlist_bundle, target="onnx-int8", shortlist=True, threads=1)
    assert loaded["target"] == "onnx-int8-shortlist"
    options: dict[str, Any] = {"target": "onnx-fp32", "threads": 1, "batch_tokens": 100}
    translator = Translator(compiled_bundle, **options)
    assert probe.load(compiled_bundle, **options)["target"] == "onnx-fp32"
    sources = random_sources(40, seed=3)
    for search in SEARCHES:
        expected = SearchOptions(**search)
        found = probe.ask(lines=LINES, options=search)["found"]
        assert_same_translations(found, translator.translate(LINES, expected))
        found = probe.ask(ids=sources, options=search)["found"]
        for ours, theirs in zip(found, translator.translate_ids(sources, expected), strict=True):
            for (piece,), right in zip((h["pieces"] for h in ours), theirs, strict=True):
                assert_same_hypothesis(piece, right)


TERMS = "the cat\tKatze\tKater\nTREE\tBaum\ndog\tHund\nRiver\tFluss\n"
PREFIXES = ["the", "", "dog", "x", "Haus", "", "", "a", "", "the cat"]
PHRASES = [["Hund", "a\tcat"], *[[] for _ in LINES[1:]]]


@pytest.mark.parametrize(
    ("asked", "arguments"),
    [
        ({"prefixes": PREFIXES}, {"target_prefixes": PREFIXES}),
        ({"constraints": PHRASES}, {"constraints": PHRASES}),
        (
            {"terminology": TERMS, "ignore_case": True, "prefixes": PREFIXES},
            {
                "terminology": Glossary.parse(TERMS.splitlines(), "terms.tsv", ignore_case=True),
                "target_prefixes": PREFIXES,
            },
        ),
        ({"translate_all": True}, {"translate_all": True}),
    ],
    ids=["prefixes", "constraints", "terminology", "all lines"],
)
def test_fields_of_a_request(
    probe: Probe, compiled_bundle: Path, asked: dict[str, Any], arguments: dict[str, Any]
) -> None:
    translator = Translator(compiled_bundle, threads=1)
    probe.load(compiled_bundle, threads=1)
    lines = [*LINES[:-2], "244890", LINES[-1]]
    expected = translator.translate(lines, **arguments)
    found = probe.ask(lines=lines, **asked)["found"]
    assert_same_translations(found, expected)
    assert texts(found) != texts(probe.ask(lines=lines)["found"])
    pairs = [[line, one.text] for line, one in zip(lines, expected, strict=True)]
    assert "terminology" not in asked or probe.ask(pairs=pairs, **asked) == {
        "size": 4,
        "terms": [
            [[term.source, term.targets[0], term.translation] for term in one.hypotheses[0].terms]
            for one in expected
        ],
    }


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"constraints": [["a"]]}, "TT_INPUT_ERROR"),
        ({"constraints": [["a"], []], "constraint_tokens": [[[5]], []]}, "TT_INPUT_ERROR"),
        ({"constraint_tokens": [[[]], [[]]]}, "TT_INPUT_ERROR"),
        ({"constraints": [["a"], []], "options": {"beam_size": 1}}, "TT_OPTION_ERROR"),
        ({"prefixes": ["a", "b", "c"]}, "TT_INPUT_ERROR"),
        ({"line_names": ["x"]}, "TT_INPUT_ERROR"),
        ({"terminology": "cat"}, "TT_INPUT_ERROR"),
        ({"alignments": True, "alignment_threshold": 1.5}, "TT_OPTION_ERROR"),
    ],
)
def test_requests_that_are_refused(
    probe: Probe, compiled_bundle: Path, wrong: dict[str, Any], status: str
) -> None:
    probe.load(compiled_bundle, threads=1)
    assert probe.ask(lines=["a", "b"], **wrong)["error"][0] == status


@pytest.mark.parametrize("threshold", [None, 0.12])
def test_alignments_and_words(probe: Probe, compiled_bundle: Path, threshold: float | None) -> None:
    translator = Translator(compiled_bundle, threads=1)
    probe.load(compiled_bundle, threads=1)
    lines = [*LINES[:6], "the cat runs. " * 90]
    options = {"num_hypotheses": 2}
    expected = translator.translate(lines, SearchOptions(**options), alignments=True)
    asked = {} if threshold is None else {"alignment_threshold": threshold}
    asked |= {"lines": lines, "options": options, "alignments": True, "words": True}
    for own, right in zip(probe.ask(**asked)["found"], expected, strict=True):
        for one, other in zip(own, right.hypotheses, strict=True):
            assert other.alignment is not None
            assert [tuple(pair) for pair in one["alignment"]] == other.alignment.pairs(threshold)
            words = translator.words(other)
            assert [text for text, _, _ in one["words"]] == [word.text for word in words]
            numbers = [number for _, *numbers in one["words"] for number in numbers]
            assert numbers == pytest.approx(
                [number for word in words for number in (word.log_prob, word.confidence)]
            )
    assert not any(one["words"] for line in probe.ask(lines=lines)["found"] for one in line)


PAGE = """<h1 id=a>The <i>cat</i></h1>
<ul><li>A <b>big <a href=x>dog</a></b> runs {n}.
<li>The <code>tree</code> walks<img> &amp; sleeps<!-- soon --></ul>
"""


@pytest.mark.parametrize(
    ("markup", "sources", "whole"),
    [
        ("html", [PAGE, ""], True),
        (
            "xml",
            ["The <b>cat</b> {n} <i>runs <u>!</u></i>", "<br/>", f"{'A dog ' * 90}<b/>"],
            False,
        ),
    ],
    ids=["page", "lines"],
)
def test_markup(
    probe: Probe, compiled_bundle: Path, markup: str, sources: list[str], whole: bool
) -> None:
    translator = Translator(compiled_bundle, threads=1)
    probe.load(compiled_bundle, threads=1)
    options = {"num_hypotheses": 3}
    if whole:
        expected = translator.translate_document(
            sources, SearchOptions(**options), split_sentences=False, markup=markup
        )
    else:
        expected = translator.translate(sources, SearchOptions(**options), markup=markup)
    found = probe.ask(lines=sources, markup=markup, whole=whole, options=options)["found"]
    assert_same_translations(found, expected)


def test_markup_that_is_refused(probe: Probe, compiled_bundle: Path) -> None:
    probe.load(compiled_bundle, threads=1)
    for wrong, message in (
        ({"lines": ["a", "<b>a</i>"]}, "text 2 of this call is not well-formed XML: mismatched"),
        ({"lines": ["a"], "words": True}, "leave them out"),
        ({"lines": ["a"], "line_names": ["x"]}, "leave them out"),
        ({"lines": ["a", "<b>a</b>"], "constraints": [[], []]}, "leave them out"),
        ({"lines": ["<b>a</b>"], "options": {"beam_size": 999}}, "beam_size 999 is too large"),
        # Long enough not to be translated before the wait for it begins.
        ({"lines": ["a " * 20_000], "seconds": 0}, "the job's deadline passed"),
        ({"lines": ["<b>a</b>"], "submitted": ["a", "b"]}, "the lines are not those"),
        ({"lines": ["<b>a</b>"], "submitted": ["b"]}, "the lines are not those"),
    ):
        assert message in probe.ask(markup="xml", **wrong)["error"][1]


def test_without_kernels(library: Library, compiled_bundle: Path) -> None:
    with library.probe(TRANSLATE_TRT_KERNELS="none") as probe:
        assert probe.load(compiled_bundle, threads=1)["kernels"] == ""
        plain = texts(probe.ask(lines=LINES)["found"])
        assert "kernels is '/nowhere'" in probe.refuses(compiled_bundle, kernels="/nowhere")[1]
        probe.load(compiled_bundle, threads=1)
        assert texts(probe.ask(lines=LINES)["found"]) == plain
    assert plain == [t.text for t in Translator(compiled_bundle, threads=1).translate(LINES)]


def test_bytes_that_are_not_utf8(library: Library, service: Path, compiled_bundle: Path) -> None:
    """JSON has none, so it is the service that is given some."""
    lines = [b"the \xff cat", b"\xe6\xbc", b"\xed\xa0\x80 dog"]
    done = serve(library, compiled_bundle, b"\n".join(lines) + b"\n")
    translator = Translator(compiled_bundle, threads=1)
    expected = translator.translate([line.decode(errors="replace") for line in lines])
    assert [one["translation"] for one in done] == [t.text for t in expected]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bundles_of_links(layout: str, probe: Probe, compiled_bundle: Path, tmp_path: Path) -> None:
    """As caches and volumes lay them out; both runtimes translate alike."""
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))
    LAYOUTS[layout](bundle)
    sources = random_sources(2, seed=6, longest=12)
    expected = Translator(bundle, threads=1).translate_ids(sources)
    probe.load(bundle, workers=1, threads=1)
    found = probe.ask(ids=sources, callers=1)["found"]
    tokens = [line[0]["pieces"][0]["tokens"] for line in found]
    assert tokens == [list(hypotheses[0].tokens) for hypotheses in expected]


# ---- errors ----


def test_every_bad_bundle(probe: Probe, make_bundle: Callable[..., Path]) -> None:
    for number, bad in enumerate(BAD_FOR_THE_CORE):
        bundle = make_bundle(f"bundle{number}")
        bad.spoil(bundle)
        status, message = probe.refuses(bundle)
        assert status == "TT_BUNDLE_ERROR", bad.name
        assert re.search(bad.message, message), (bad.name, message)


def test_every_missing_or_mistyped_field_is_named(
    probe: Probe, make_bundle: Callable[..., Path]
) -> None:
    bundle = make_bundle()
    path = bundle / "manifest.json"
    for text, field in spoiled_fields(path.read_text()):
        path.write_text(text)
        status, message = probe.refuses(bundle)
        assert status == "TT_BUNDLE_ERROR"
        assert field in message


def test_other_backends(probe: Probe, compiled_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(compiled_bundle, tmp_path / "copy"))
    edit(copy, lambda m: m["targets"]["onnx-fp32"].update(backend="tensorrt"))
    assert "backend 'tensorrt', which this library does not have" in probe.refuses(copy)[1]
    probe.load(compiled_bundle)  # and is none the worse for it


def test_load_options_out_of_range(probe: Probe, compiled_bundle: Path) -> None:
    numbers = ("workers", "threads", "batch_tokens", "batches", "capacity")
    for status, refused in {
        "TT_OPTION_ERROR": [
            *(({name: -1}, f"{name} is -1") for name in numbers),
            *(({"device": name}, f"device is '{name}'") for name in ("gpu", "cuda:x")),
            ({"device": "cuda", "target": "onnx-int8"}, "onnx-int8 runs on a CPU only"),
            ({"device": "tensorrt"}, "Write cuda or tensorrt-rtx"),
            ({"device": "tensorrt-rtx"}, "the option provider, or TRANSLATE"),
            ({"device": "tensorrt-rtx", "provider": "/nowhere"}, "there is no such file"),
            ({"kernels": "/nowhere"}, "there is no such file"),
        ],
        "TT_BUNDLE_ERROR": [
            ({"target": "onnx-fp8"}, "it has: onnx-fp32, onnx-int8"),
            ({"shortlist": True}, "there is no shortlist to use"),
        ],
        "TT_BACKEND_ERROR": [
            ({"device": "cuda"}, "cannot use the device cuda"),
            ({"onnxruntime": "/nowhere", "kernels": "none"}, "cannot load ONNX Runtime"),
            ({"kernels": str(HEADER)}, "no library of compiled kernels"),
        ],
    }.items():
        for options, message in refused:
            found, said = probe.refuses(compiled_bundle, **options)
            assert (found, message in said) == (status, True), said


def test_kernels_for_bundles_of_another_format_are_refused(
    library: Library, compiled_bundle: Path, make_library: Callable[..., Path]
) -> None:
    source = LIBRARY_SOURCE.replace(f"return {FORMAT_VERSION}", f"return {FORMAT_VERSION - 1}")
    kernels = make_library("old", source=source)
    with library.probe() as probe:
        status, message = probe.refuses(compiled_bundle, kernels=str(kernels))
    assert status == "TT_BACKEND_ERROR"
    assert f"{kernels} was built for bundles of format {FORMAT_VERSION - 1}" in message


def test_more_than_the_machine_has_is_lowered_and_told(
    library: Library, compiled_bundle: Path
) -> None:
    with library.probe() as probe:
        probe.load(compiled_bundle, threads=100_000, workers=2_000_000_000)
        told = probe.close()
    cores = available_cores()
    assert f"threads is 100000; {cores} are used, since this process may use {cores} " in told
    assert f"workers is 2000000000; {4 * cores} are used" in told


def test_a_library_that_is_not_onnxruntime(
    probe: Probe, compiled_bundle: Path, make_library: Callable[..., Path]
) -> None:
    other = str(make_library("other"))
    status, message = probe.refuses(compiled_bundle, onnxruntime=other, kernels="none")
    assert (status, "is not ONNX Runtime" in message) == ("TT_BACKEND_ERROR", True)
    old = """
    static const char* version(void) {{ return "1.20.1"; }}
    static const void* api(unsigned number) {{ return 0; }}
    static const struct {{ const void* (*api)(unsigned); const char* (*version)(void); }} base =
        {{ api, version }};
    const void* OrtGetApiBase(void) {{ return &base; }}
    """
    path = str(make_library("old", old))
    status, message = probe.refuses(compiled_bundle, onnxruntime=path, kernels="none")
    assert (status, "needs 1.21 or newer" in message) == ("TT_BACKEND_ERROR", True)


# ---- the interface ----


def test_it_reads_the_format_that_python_writes() -> None:
    header = (ROOT / "runtime/cpp/format_version.h").read_text()
    assert f"kFormatVersion = {FORMAT_VERSION};" in header


def test_an_installation_needs_nothing_else(library: Library, tmp_path: Path) -> None:
    """Also where it was moved to, and without LD_LIBRARY_PATH."""
    code = """
    #include <translate_trt/cuda.h>
    #include <translate_trt/translate_trt.h>
    int main(void) {
      tt_cuda_engines engines = {sizeof engines, 0, 0, 0, 0, 0, 0};
      tt_device_functions functions;
      return tt_version()[0] == 0 || tt_cuda_functions(&engines, &functions) != TT_OPTION_ERROR;
    }
    """
    program = library.compile_c(code)
    assert library.prefix is not None
    environment = {k: v for k, v in library.environment().items() if k != "LD_LIBRARY_PATH"}
    assert subprocess.run([program], env=environment, check=False).returncode == 0
    place = library.installed("libtranslate_trt.so").parent
    moved = Path(shutil.copytree(place, tmp_path / "moved", symlinks=True))
    program.unlink()
    library.compile_c(code, place=moved)
    assert subprocess.run([program], env=environment, check=False).returncode == 0


def test_nothing_but_the_interface_is_exported(library: Library) -> None:
    path = library.installed("libtranslate_trt.so")
    assert exported(path) == declared(*HEADER.parent.glob("*.h"))
    assert os.readlink(path) == "libtranslate_trt.so.0"


def test_the_wrapper_does_without_exceptions(library: Library) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    assert library.prefix is not None
    code = """
    #include <translate_trt/translate_trt.hpp>
    int main() {
      const auto loaded = translate_trt::Translator::try_load("/nowhere");
      return loaded || loaded.error().status != TT_BUNDLE_ERROR;
    }
    """
    done = subprocess.run(
        [compiler, "-std=c++17", "-fno-exceptions", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
         f"-I{library.prefix / 'include'}", "-x", "c++", "-"],
        input=code, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def service(library: Library) -> Path:
    """Build the example from an installation, as a user would."""
    assert library.prefix is not None
    folder = library.prefix / "service"
    for command in (
        ["cmake", "-S", ROOT / "examples/cpp_service", "-B", folder,
         f"-DCMAKE_PREFIX_PATH={library.prefix}"],
        ["cmake", "--build", folder],
    ):  # fmt: skip
        done = subprocess.run(
            command, env=library.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "translate_service"


def serve(library: Library, bundle: Path, text: bytes, *arguments: str) -> list[dict[str, Any]]:
    assert library.prefix is not None
    program = library.prefix / "service/translate_service"
    done = subprocess.run(
        [program, bundle, *arguments], input=text, env=library.environment(),
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def test_the_example_service(
    library: Library, service: Path, compiled_bundle: Path, tmp_path: Path
) -> None:
    lines = [*LINES[:2], 'say "the cat"', *LINES[2:7]] * 40  # more than it submits at once
    found = serve(library, compiled_bundle, "".join(f"{x}\n" for x in lines).encode(), "onnx-fp32")
    expected = Translator(compiled_bundle, "onnx-fp32", threads=1).translate(lines)
    assert [one["translation"] for one in found] == [t.text for t in expected]
    several = with_prompt(compiled_bundle, TARGET, tmp_path / "bundle")
    found = serve(library, several, b"the cat\n", "", "nl", "en")
    options = SearchOptions(source_language="en", target_language="nl")
    assert found[0]["translation"] == Translator(several).translate(["the cat"], options)[0].text
    refused = subprocess.run(
        [service, "/nowhere"], input=b"", env=library.environment(), capture_output=True
    )
    assert refused.returncode == 1
    assert refused.stderr == b"translate_service: there is no bundle at /nowhere; check the path.\n"


def test_kernels_beside_the_library_are_found(
    library: Library, service: Path, compiled_bundle: Path, search_kernels: str
) -> None:
    environment = library.environment()
    del environment["TRANSLATE_TRT_KERNELS"]
    done = subprocess.run(
        [service, compiled_bundle], input=b"the cat\n", env=environment, capture_output=True
    )
    # It asks for a worker per core; more than the process may use are lowered and told.
    assert f"compiled kernels: {search_kernels}" in done.stderr.decode().splitlines()


# ---- under sanitizers ----


@pytest.mark.nightly
def test_sanitizers_find_nothing_in_kernels(sanitized: Library, search_kernels: str) -> None:
    done = sanitized.run("translate_trt_kernel_tests")
    assert done.returncode == 0, done.stderr


def test_unit_tests_without_thread_sanitizer_start_no_thread() -> None:
    folder = ROOT / "runtime/cpp/tests"
    listed = re.search(
        r"set\(single_threaded_tests (.*?)\)", (folder / "CMakeLists.txt").read_text(), re.DOTALL
    )
    assert listed is not None
    names = listed[1].split()
    assert len(names) > 1
    for name in names:
        found = re.findall(
            r"<(?:thread|future)>|std::(?:thread|async)", (folder / name).read_text()
        )
        assert found == [], name


@pytest.mark.nightly
def test_sanitizers_find_nothing(
    sanitized: Library, compiled_bundle: Path, nan_bundle: Path,
    make_bundle: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    done = sanitized.run("translate_trt_unit_tests")
    assert (done.returncode, done.stdout) == (0, "all passed\n"), done.stderr
    sources = random_sources(24, seed=6, longest=12)
    expected = Translator(compiled_bundle, threads=1).translate_ids(sources)
    with sanitized.probe() as probe:
        for number, bad in enumerate(BAD_FOR_THE_CORE):
            bundle = make_bundle(f"bundle{number}")
            bad.spoil(bundle)
            assert probe.refuses(bundle)[0] == "TT_BUNDLE_ERROR"
        for workers in (1, 2):
            probe.load(compiled_bundle, workers=workers, threads=1, batch_tokens=60)
            found = probe.ask(ids=sources, callers=8)["found"]
            tokens = [line[0]["pieces"][0]["tokens"] for line in found]
            assert tokens == [list(hypotheses[0].tokens) for hypotheses in expected]
            for search in SEARCHES[2:]:
                probe.ask(lines=LINES[:8], options=search)
            assert texts(probe.ask(lines=LINES, threads=6)["found"]) == texts(
                probe.ask(lines=LINES)["found"]
            )
            assert probe.ask(lines=LINES * 10, cancel=3, timeout=5)["told"] == 10 * len(LINES)
            assert "error" in probe.ask(ids=[[5], [-1]])
        probe.load(nan_bundle, workers=2, threads=1)
        assert "error" in probe.ask(lines=["the cat", NAN_WORD] * 5)
        several = with_prompt(compiled_bundle, TARGET, tmp_path / "several", **EN_DE)
        assert probe.load(several, threads=1)["target_languages"] == ["de", "nl"]
        german = texts(probe.ask(lines=LINES)["found"])
        assert texts(probe.ask(lines=LINES, options={"target_language": "de"})["found"]) == german
        assert "error" in probe.ask(lines=LINES, options={"target_language": "yy"})
        probe.load(with_prompt(compiled_bundle, SOURCE, tmp_path / "lines"), threads=1)
        lines = [">>deu<< the cat", ">>deu", ">>nld<<" + LINES[-1]]
        assert "found" in probe.ask(lines=lines, options={"target_language": "deu"})
        assert "error" in probe.ask(lines=lines)
    # A report ends the program with an error, which leaving `with` would have told.
