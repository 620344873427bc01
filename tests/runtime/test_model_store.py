"""Tests of installed models: names, installation, removal, and commands that take names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime import (
    BundleError,
    OptionError,
    OutputError,
    Translator,
    installed_bundle,
)
from translate_trt.runtime.cli import SUBCOMMANDS, main
from translate_trt.runtime.cli.bundle_flags import BUNDLE
from translate_trt.runtime.model_changes import new_model, write_record
from translate_trt.runtime.model_store import (
    VARIABLE,
    ModelRecord,
    check_name,
    find_model,
    installed_models,
    resolve_bundle,
)

OPUS = "Helsinki-NLP/opus-mt-en-de"


def record(name: str) -> ModelRecord:
    return ModelRecord(
        name=name, source="hub", repository=name, revision="0123456789abcdef" * 2 + "01234567",
        license="cc-by-4.0", format="marian-hf", source_languages=("en",),
        target_languages=("de", "fr"), installed="2026-01-31", bytes=80_000_000,
        verification={"onnx-int8": {"passed": True}},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


@pytest.fixture
def install(make_bundle: Callable[..., Path]) -> Callable[..., Path]:
    """Factory of installed models; returns the bundle."""
    bundle = make_bundle("original")

    def install(name: str, force: bool = False) -> Path:
        with new_model(name, force) as directory:
            shutil.copytree(bundle, directory / "bundle")
            write_record(directory, record(check_name(name)))
        return find_model(name).bundle

    return install


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "a/..", "a/../b", "/a", "a/", "a/b/c", "a\\b", "a--b", "-a", "a-", ".a", "a.",
     "", "a b", "a\nb", "ä", "C:", "a/" + "b" * 97, "firefox:../x", "con\0"],
)  # fmt: skip
def test_names_cannot_leave_the_store(name: str, store: Path) -> None:
    with pytest.raises(OptionError, match="model"):
        check_name(name)
    with pytest.raises(OptionError, match="name"), new_model(name):
        pass
    with pytest.raises(BundleError):
        installed_bundle(name)
    assert not store.exists()


def test_names_are_found_in_every_spelling(install: Callable[..., Path]) -> None:
    bundle = install(OPUS)
    for name in (OPUS, OPUS.lower(), "opus-mt-en-de", "Opus-MT-en-de"):
        assert installed_bundle(name) == bundle == resolve_bundle(name)
    install("firefox:en-de")
    assert installed_bundle("firefox:en-de") == installed_bundle("firefox/en-de")
    assert find_model("en-de").record.name == "firefox/en-de"


def test_a_text_that_is_too_long_for_a_name_is_no_bundle(store: Path) -> None:
    assert resolve_bundle("x" * 5000) == Path("x" * 5000)


def test_a_short_name_of_two_models_is_refused(install: Callable[..., Path]) -> None:
    install("a/model"), install("b/model")
    for ask in (installed_bundle, resolve_bundle):
        with pytest.raises(BundleError, match="'model'"):
            ask("model")
    install("model")  # an exact name is not ambiguous
    assert installed_bundle("model").parent.name == "model"


def test_an_existing_path_wins(
    install: Callable[..., Path], make_bundle: Callable[..., Path]
) -> None:
    install("original")
    assert resolve_bundle("original") == Path("original")
    assert installed_bundle("original") != Path("original")


def test_an_unknown_name_is_reported_with_near_misses(install: Callable[..., Path]) -> None:
    install(OPUS), install("x/other")
    result = run("info", "Helsinki-NLP/opus-mt-en-dd")
    assert result.exit_code == 1
    for part in (OPUS, "translate-trt get Helsinki-NLP/opus-mt-en-dd"):
        assert part in result.stderr
    for name in ("nothing-like-it", "../a/b"):
        assert "translate-trt get OWNER/NAME" in run("remove", name).stderr
    assert "translate-trt get OWNER/NAME" in run("info", "nothing-like-it").stderr
    with pytest.raises(BundleError, match="translate-trt get a/b"):
        Translator("a/b")
    assert "check the path" in run("info", "/a/b").stderr


@pytest.mark.parametrize(
    "name",
    ["translate", "score", "bench", "calibrate", "triton", "corpus", "info", "verify", "distill"],
)
def test_every_bundle_option_takes_names(name: str) -> None:
    entry = SUBCOMMANDS[name]
    pytest.importorskip("torch", reason="the training packages are needed") if entry.extra else None
    assert any(param.type is BUNDLE for param in entry.load(name).params)


def test_list_and_remove(install: Callable[..., Path], store: Path) -> None:
    result = run("list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"no models in {store}\n")
    install(OPUS), install("x/other")
    header, first, second = run("list").stdout.splitlines()
    assert header.split() == [
        "name", "languages", "size", "format", "license", "revision", "installed"
    ]  # fmt: skip
    assert first.split() == [
        OPUS, "en", "to", "any", "of", "2", "80.0", "MB", "marian-hf", "cc-by-4.0", "0123456789ab",
        "2026-01-31",
    ]  # fmt: skip
    assert second.startswith("x/other ")
    values = json.loads(run("list", "--json").stdout)
    assert [value["name"] for value in values] == [OPUS, "x/other"]
    assert Path(values[0]["bundle"]) == installed_bundle(OPUS)
    assert values[0]["verification"]["onnx-int8"]["passed"]
    result = run("remove", "other", "x/other", "opus-mt-en-de")
    assert result.exit_code == 0, result.output
    assert result.stderr == f"removed x/other, 80.0 MB\nremoved {OPUS}, 80.0 MB\n"
    assert list(store.iterdir()) == []
    result = run("remove", OPUS)
    assert (result.exit_code, "is installed. Install" in result.stderr) == (1, True)


def test_a_model_is_replaced_only_with_force(install: Callable[..., Path]) -> None:
    bundle = install(OPUS)
    with pytest.raises(OutputError, match="--force"):
        install(OPUS)
    (bundle / "manifest.json").touch()
    assert install(OPUS, force=True) == bundle
    (bundle / "notes.txt").write_text("of the user")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        install(OPUS, force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_failed_installation_leaves_nothing(
    error: type[BaseException], install: Callable[..., Path], store: Path
) -> None:
    def fail(force: bool) -> None:
        with new_model(OPUS, force) as directory:
            (directory / "bundle").mkdir()
            assert installed_models() == [] or force
            raise error

    with pytest.raises(error):
        fail(force=False)
    assert list(store.iterdir()) == []
    bundle = install(OPUS)
    with pytest.raises(error):
        fail(force=True)
    assert installed_bundle(OPUS) == bundle
    assert [path.name for path in store.iterdir()] == [bundle.parent.name]


def test_damaged_records_are_named(install: Callable[..., Path], store: Path) -> None:
    bundle = install(OPUS)
    install("x/other")
    path = bundle.parent / "model.json"
    values = json.loads(path.read_text())
    for text, message in (
        ("{", "cannot be read"),
        ("[]", "must be an object"),
        (json.dumps(values | {"name": "a/b"}), "its directory has another name"),
        (json.dumps(values | {"bytes": "many"}), "'bytes' must be"),
    ):
        path.write_text(text)
        with pytest.raises(BundleError, match=message):
            installed_bundle(OPUS)
        result = run("list")
        assert result.exit_code == 0
        assert "x/other" in result.stdout
        assert OPUS not in result.stdout


def test_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("TRANSLATE_TRT_CACHE", "none")
    assert installed_models() == []
    with pytest.raises(OutputError, match=f"set {VARIABLE} to one"), new_model("a/b"):
        pass
    monkeypatch.setenv("TRANSLATE_TRT_CACHE", "elsewhere")
    with new_model("a/b") as directory:
        assert directory.parent == Path("elsewhere/models").absolute()
