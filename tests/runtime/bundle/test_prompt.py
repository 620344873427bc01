"""Prompts of multilingual models."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.prompts import SOURCE, TARGET, with_prompt
from support.translations import assert_same, random_sources

from translate_trt.runtime import SearchOptions, Translation, Translator
from translate_trt.runtime.bundle.contract import FREE, forced_token, unscored
from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import CheckpointError, InputError, OptionError
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.evaluation.validation import translate_reference
from translate_trt.train.search import beam_search

PROMPTS = {"target": TARGET, "source": SOURCE}
ENGLISH = SearchOptions(num_hypotheses=4, source_language="en", target_language="de")


@pytest.fixture(scope="module")
def translators(
    compiled_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Translator]:
    made = {}
    for name, prompt in PROMPTS.items():
        path = with_prompt(compiled_bundle, prompt, tmp_path_factory.mktemp(name) / "bundle")
        made[name] = Translator(path, "onnx-fp32", threads=1)
    return made


def said(translations: list[Translation]) -> list[list[tuple[int, ...]]]:
    """Tokens of each line's best segments; scores differ in the last bit between batches."""
    return [[segment.tokens for segment in one.hypotheses[0].segments] for one in translations]


@pytest.fixture
def several(translators: dict[str, Translator]) -> Translator:
    return translators["target"]


@pytest.fixture
def opus(translators: dict[str, Translator]) -> Translator:
    return translators["source"]


def test_what_stands_in_forced_tokens() -> None:
    assert [forced_token(unscored(token)) for token in (0, 1, 77)] == [0, 1, 77]
    assert [forced_token(token) for token in (0, 1, 77)] == [0, 1, 77]
    assert max(unscored(0), unscored(1)) < FREE


def test_tokens_stand_before_the_text(several: Translator, checkpoint: Checkpoint) -> None:
    sources = random_sources(20, seed=4)
    prefixes = [[9, 8, 7][: index % 4] for index in range(len(sources))]
    found = several.translate_ids(sources, ENGLISH, prefixes)
    whole = [[5, 21, *source] for source in sources]
    begin = [[unscored(token) for token in (6, 31, *prefix)] for prefix in prefixes]
    assert_same(found, beam_search(checkpoint.load_model(), whole, ENGLISH, begin))
    for hypotheses, prefix in zip(found, prefixes, strict=True):
        for one in hypotheses:
            forced, free = np.split(one.token_log_probs, [2 + len(prefix)])
            assert one.tokens[: len(forced)] == (6, 31, *prefix)
            assert not forced.any()
            assert (free < 0).all()
    dutch = several.translate_ids(sources, dataclasses.replace(ENGLISH, target_language="nl"))
    assert all(one[0].tokens[:2] == (6, 32) for one in dutch)


def test_a_language_before_the_source(opus: Translator, checkpoint: Checkpoint) -> None:
    sources = random_sources(8, seed=5)
    found = opus.translate_ids(sources, SearchOptions(target_language="nld"))
    model = checkpoint.load_model()
    assert_same(found, beam_search(model, [[32, *one] for one in sources], SearchOptions()))
    assert_same(opus.translate_ids(sources), beam_search(model, sources, SearchOptions()))


def test_a_line_says_its_language_itself_in_all_its_pieces(opus: Translator) -> None:
    long = " ".join(["the dog runs over the big river."] * 9)
    german, dutch = (SearchOptions(target_language=code) for code in ("deu", "nld"))
    # A word that is no language code is text; a line's own language stands above the options.
    lines = {
        f"  >>deu<<{long}": (long, german), ">>nld<< the cat": ("the cat", dutch),
        ">>Cats<< the cat": (">>Cats<< the cat", german), "the cat": ("the cat", german),
        "": ("", dutch),
    }  # fmt: skip
    found = opus.translate(list(lines), german)
    assert found[0].segment_count > 1
    assert [one.segment_count for one in found[1:]] == [1, 1, 1, 0]
    assert said(found) == said([opus.translate(text, options) for text, options in lines.values()])
    assert said(found)[1] != said(found)[3]


def test_a_line_without_its_language(opus: Translator) -> None:
    with pytest.raises(OptionError, match="line 2"):
        opus.translate([">>nld<< the cat", "the cat", ""])
    assert [one.segment_count for one in opus.translate([">>nld<< the cat", "", " "])] == [1, 0, 0]


def test_sources_leave_room_for_the_prompt(several: Translator) -> None:
    longest = several.manifest.limits.max_source_length - 1 - 2
    several.translate_ids([[7] * longest], ENGLISH)
    with pytest.raises(InputError, match=f"has {longest + 1} tokens; .* takes up to {longest} "):
        several.translate_ids([[7] * (longest + 1)], ENGLISH)
    (found,) = several.translate(["the dog runs. " * 40], ENGLISH)
    assert found.segment_count > 1
    assert all(segment.tokens[:2] == (6, 31) for segment in found.hypotheses[0].segments)
    with pytest.raises(OptionError, match=r"prefix.*source 0"):
        several.translate_ids([[7]], dataclasses.replace(ENGLISH, max_length=3), [[8]])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("target", {"target_language": None}, "target_language"),
        ("target", {"source_language": None}, "source_language"),
        ("target", {"target_language": "dee"}, "'dee'"),
        ("target", {"source_language": "xx"}, "source_language 'xx'"),
        ("source", {"target_language": "de"}, "'de'"),
        ("source", {"target_language": "deu", "source_language": "fr"}, "en alone"),
    ],
)
def test_languages_it_does_not_know(
    name: str, changes: dict[str, Any], message: str, translators: dict[str, Translator]
) -> None:
    options = dataclasses.replace(ENGLISH, **changes)
    with pytest.raises(OptionError, match=message):
        translators[name].check(options)
    with pytest.raises(OptionError, match=message):
        translators[name].translate("the cat", options)


def test_a_language_that_is_not_said_is_the_bundles(compiled_bundle: Path, tmp_path: Path) -> None:
    defaults = {"source_language": "en", "target_language": "nl"}
    bundle = with_prompt(compiled_bundle, TARGET, tmp_path / "bundle", **defaults)
    translator = Translator(bundle, "onnx-fp32", threads=1)
    for options in (None, SearchOptions(2)):
        assert said(translator.translate(["the cat"], options))[0][0][:2] == (6, 32)
        assert translator.translate_ids([[7]], options)[0][0].tokens[:2] == (6, 32)
    french = SearchOptions(source_language="fr", target_language="de")
    assert said(translator.translate(["the cat"], french))[0][0][:2] == (6, 31)


def test_a_model_of_two_languages_may_be_told_them(compiled_bundle: Path) -> None:
    translator = Translator(compiled_bundle, "onnx-fp32", threads=1)
    assert translator.translate(["the cat"], ENGLISH) == translator.translate(
        ["the cat"], dataclasses.replace(ENGLISH, source_language=None, target_language=None)
    )
    with pytest.raises(OptionError, match="'nl'"):
        translator.translate(["the cat"], SearchOptions(target_language="nl"))


def test_which_languages_it_knows(
    translators: dict[str, Translator], compiled_bundle: Path
) -> None:
    known = {
        name: (one.source_languages, one.target_languages) for name, one in translators.items()
    }
    assert known == {
        "target": (("en", "fr"), ("de", "nl")),
        "source": (("en",), ("deu", "nld")),  # what is in the manifest for people counts, too
    }
    manifest = dataclasses.replace(read_manifest(compiled_bundle), target_language=None)
    assert (manifest.source_languages, manifest.target_languages) == (("en",), ())


def test_a_long_list_is_not_shown_whole() -> None:
    many = Prompt(target_languages={f"l{number:03}": number for number in range(200)})
    with pytest.raises(OptionError, match=r"l000.*l011"):
        many.check(SearchOptions(), (None, None))


# ---- as it stands in files ----


@pytest.mark.parametrize("prompt", [Prompt(), TARGET, SOURCE], ids=repr)
def test_a_manifest_has_it(prompt: Prompt, compiled_bundle: Path, tmp_path: Path) -> None:
    manifest = dataclasses.replace(read_manifest(compiled_bundle), prompt=prompt)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_a_damaged_one_of_a_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    shutil.copytree(checkpoint.path, tmp_path / "checkpoint")
    config = tmp_path / "checkpoint" / "config.json"
    prompt = {**TARGET.to_json(), "target_side": "left"}
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"prompt": prompt}))
    with pytest.raises(CheckpointError, match=r"'prompt\.target_side' must be one of"):
        open_checkpoint(tmp_path / "checkpoint")


def test_a_checkpoint_has_it(several: Translator, checkpoint: Checkpoint, tmp_path: Path) -> None:
    shutil.copytree(checkpoint.path, tmp_path / "checkpoint")
    config = tmp_path / "checkpoint" / "config.json"
    values = json.loads(config.read_text("utf-8")) | {"prompt": TARGET.to_json()}
    config.write_text(json.dumps(values))
    told = open_checkpoint(tmp_path / "checkpoint")
    assert told.prompt == TARGET
    lines = ["the dog runs", "", "a cat eats over the river"]
    texts, found = translate_reference(
        told.load_model(), several.tokenizer, lines, ENGLISH, told.prompt
    )
    expected = several.translate(lines, ENGLISH)
    assert texts == [one.text for one in expected]
    assert found[0][0].tokens == expected[0].hypotheses[0].segments[0].tokens
    with pytest.raises(OptionError, match="source_language"):
        told.check_languages(SearchOptions())
