"""`translate-trt get` against a server that speaks the Hub's protocol."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.ctranslate2_models import save_random_model, words
from support.hub_server import Hub, Repository
from support.marian_models import save_random_marian

pytest.importorskip("huggingface_hub", reason="the hub packages are needed")

from translate_trt.export.hub.repository import HubRepository
from translate_trt.runtime.bundle.manifest import bundle_files, read_manifest, write_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.model_store import find_model, installed_bundle, installed_models

OPUS = "Helsinki-NLP/opus-mt-en-de"
BUNDLE = "someone/bundle"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def get(*arguments: str) -> Result:
    done = run("get", *arguments)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def bundle_repository(hub: Hub, make_bundle: Callable[..., Path]) -> Repository:
    repository = hub.repository(BUNDLE, license="mit")
    repository.commit_directory(make_bundle())
    return repository


@pytest.fixture
def fake_compile(monkeypatch: pytest.MonkeyPatch, make_bundle: Callable[..., Path]) -> list[object]:
    """Replace the compiler, which takes seconds; returns the checkpoints and options it gets."""
    bundle, calls = make_bundle("compiled", ("onnx-int8",)), []

    def compile_bundle(checkpoint: object, out: Path, options: object) -> None:
        calls.append((checkpoint, options))
        shutil.copytree(bundle, out)

    monkeypatch.setattr("translate_trt.export.compile.compile_bundle", compile_bundle)
    return calls


@pytest.mark.slow
def test_from_a_name_to_a_translation(
    hub: Hub, store: Path, tokenizer_model: Path, tmp_path: Path
) -> None:
    save_random_marian(tmp_path / "model", tokenizer_model, tokenizer_model)
    (tmp_path / "model" / "rust_model.ot").write_bytes(b"other weights")
    sha = hub.repository(OPUS, license="cc-by-4.0").commit_directory(tmp_path / "model")
    done = get(OPUS)
    assert done.stdout == f"translate-trt translate --bundle {OPUS} --target-language deu\n"
    assert f"{OPUS} at {sha}, license: cc-by-4.0" in done.stderr
    assert set(hub.downloads()) == {
        "config.json", "generation_config.json", "model.safetensors", "source.spm", "vocab.json"
    }  # fmt: skip  # target.spm has the content of source.spm
    record = find_model(OPUS).record
    assert (record.revision, record.license, record.format) == (sha, "cc-by-4.0", "marian-hf")
    assert (record.source_languages, record.target_languages) == (("en",), ("deu", "fra"))
    evidence = record.verification["onnx-int8"]
    assert (evidence["kind"], evidence["passed"], evidence["sentences"]) == ("references", True, 24)
    assert read_manifest(installed_bundle(OPUS)).targets["onnx-int8"].parity is not None
    assert {path.name for path in find_model(OPUS).directory.iterdir()} == {"bundle", "model.json"}
    (tmp_path / "in.txt").write_text("the cat sleeps\n")
    done = run("translate", "--bundle", "opus-mt-en-de", "--target-language", "deu", "in.txt")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1
    (tmp_path / "in.html").write_text("<p>the <b>cat</b> sleeps</p>\n")
    language = "--target-language", "fra"
    done = run("translate", "--bundle", OPUS, *language, "--markup", "html", "in.html")
    assert (done.exit_code, done.stdout.count("<b>")) == (0, 1), done.output
    assert OPUS in run("list").stdout
    assert run("remove", OPUS).exit_code == 0
    assert installed_models() == []


def test_only_the_files_of_the_format_are_imported(
    hub: Hub, fake_compile: list[tuple[object, object]], tmp_path: Path
) -> None:
    source, target = words(30, "s"), words(40, "t")
    model = save_random_model(tmp_path / "model", (source, target))
    (model / "README.md").write_text("text")
    hub.repository("someone/opus-mt-de-fr").commit_directory(model)
    done = get("someone/opus-mt-de-fr", "--no-verify", "--target", "onnx-int8")
    assert "states no license" in done.stderr
    assert "README.md" not in hub.downloads()
    [(checkpoint, options)] = fake_compile
    assert (checkpoint.source_language, checkpoint.target_language) == ("de", "fr")  # type: ignore[attr-defined]
    assert options.targets == ("onnx-int8",)  # type: ignore[attr-defined]
    assert options.attention  # type: ignore[attr-defined]
    get("someone/opus-mt-de-fr", "--no-verify", "--no-attention", "--force")
    assert not fake_compile[-1][1].attention  # type: ignore[attr-defined]
    assert find_model("opus-mt-de-fr").record.format == "ctranslate2"


def test_a_checkpoint_needs_no_import(
    hub: Hub, fake_compile: list[tuple[object, object]], tmp_path: Path
) -> None:
    source, target = words(30, "s"), words(40, "t")
    model = save_random_model(tmp_path / "model", (source, target))
    arguments = ["--output", "checkpoint", "--languages", "en", "de"]
    assert run("import", "auto", str(model), *arguments).exit_code == 0
    hub.repository("someone/checkpoint").commit_directory(Path("checkpoint"))
    done = run("get", "someone/checkpoint", "--languages", "en", "de", "--no-verify")
    assert (done.exit_code, "languages" in done.stderr) == (2, True)
    get("someone/checkpoint", "--no-verify")
    [(checkpoint, _)] = fake_compile
    assert checkpoint.target_language == "de"  # type: ignore[attr-defined]
    assert find_model("checkpoint").record.format == "checkpoint"


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("Helsinki-NLP/opus-mt-en-de", ("en", "de")),
        ("Helsinki-NLP/opus-mt-tc-big-fi-deu", ("fi", "deu")),
        ("Helsinki-NLP/opus-mt-en-ROMANCE", (None, None)),
        ("someone/model-for-all", (None, None)),
    ],
)
def test_languages_of_names(name: str, languages: tuple[str | None, str | None]) -> None:
    assert HubRepository(name, "", None, {}).languages == languages


def test_a_bundle_is_pulled_as_it_is(
    hub: Hub, bundle_repository: Repository, make_bundle: Callable[..., Path]
) -> None:
    done = get(BUNDLE, "--as", "mine")
    assert done.stdout == "translate-trt translate --bundle mine\n"
    record = find_model("mine").record
    assert (record.repository, record.format, record.license) == (BUNDLE, "bundle", "mit")
    original = make_bundle("second")
    for path in (path for path in original.rglob("*") if path.is_file()):
        relative = path.relative_to(original)
        assert (installed_bundle("mine") / relative).read_bytes() == path.read_bytes()
    get(BUNDLE, "--as", "small", "--target", "onnx-int8")
    assert list(read_manifest(installed_bundle("small")).targets) == ["onnx-int8"]
    assert not (installed_bundle("small") / "targets/onnx-fp32").exists()
    assert run("info", "small").exit_code == 0
    assert "'onnx-int4'" in run("get", BUNDLE, "--target", "onnx-int4").stderr


def test_revisions_are_pinned(hub: Hub, bundle_repository: Repository) -> None:
    [first] = bundle_repository.commits
    files = dict(bundle_repository.commits[first])
    second = bundle_repository.commit({**files, "more.txt": b"x"})
    get(BUNDLE)
    assert find_model(BUNDLE).record.revision == second
    done = run("get", BUNDLE)
    assert (done.exit_code, "installed" in done.stderr) == (1, True)
    get(BUNDLE, "--revision", first, "--force")
    assert find_model(BUNDLE).record.revision == first


def test_the_second_time_without_a_network(
    hub: Hub, bundle_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("get", BUNDLE, "--offline")
    assert "downloaded before" in done.stderr
    get(BUNDLE)
    [sha] = bundle_repository.commits
    hub.requests.clear()
    get(BUNDLE, "--force", "--offline")
    get(BUNDLE, "--force", "--offline", "--revision", sha)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    get(BUNDLE, "--force")
    assert hub.requests == []
    assert find_model(BUNDLE).record.license == "mit"
    shutil.rmtree(Path("hf"))
    done = run("get", BUNDLE, "--force", "--offline")
    assert "Hub" in done.stderr
    assert installed_bundle(BUNDLE).is_dir()


def test_a_broken_download_continues(
    hub: Hub, bundle_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    hub.cuts.append(1000)
    get(BUNDLE)
    assert "bytes=1000-" in {wanted for _, _, wanted in hub.requests}


def test_a_wrong_hash_is_refused(hub: Hub, bundle_repository: Repository) -> None:
    name = "targets/onnx-int8/step.onnx"
    bundle_repository.stated[name] = "0" * 64
    done = run("get", BUNDLE)
    assert (done.exit_code, f"{name} has SHA-256" in done.stderr) == (1, True)
    assert installed_models() == []
    bundle_repository.stated = {"shared.spm": "0" * 40}
    assert "shared.spm" in run("get", BUNDLE).stderr
    bundle_repository.stated = {}
    hub.requests.clear()
    get(BUNDLE)
    # What had arrived before is in the cache of the Hub.
    assert "targets/onnx-fp32/step.onnx" not in hub.downloads()
    assert "shared.spm" in hub.downloads()


def test_a_bundle_with_a_changed_file_is_refused(hub: Hub, bundle_repository: Repository) -> None:
    [files] = bundle_repository.commits.values()
    name = "targets/onnx-int8/step.onnx"
    bundle_repository.commit({**files, name: b"x" * len(files[name])})
    assert "changed" in run("get", BUNDLE).stderr
    bundle_repository.commit({key: text for key, text in files.items() if key != name})
    assert f"lacks {name}" in run("get", BUNDLE).stderr
    manifest = json.loads(files["manifest.json"])
    manifest["targets"]["onnx-int8"]["files"]["step"]["path"] = "../../../outside"
    bundle_repository.commit({**files, "manifest.json": json.dumps(manifest).encode()})
    assert "allowed" in run("get", BUNDLE).stderr
    assert installed_models() == []


def test_evidence_that_looks_like_a_file_is_none(
    hub: Hub, make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    """An untrusted manifest cannot make `push` publish files, or `get` write any."""
    (tmp_path / "secret").write_text("secret")
    bundle = make_bundle("small", ("onnx-int8",))
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    for path in (str(tmp_path / "secret"), "../secret", "own"):
        parity = {"path": path, "sha256": "x"}
        manifest["targets"]["onnx-int8"]["parity"] = parity
        (bundle / "manifest.json").write_text(json.dumps(manifest))
        (bundle / "own").write_text("secret")
        done = run("push", str(bundle), "me/pushed", "--license", "mit")
        assert done.exit_code == 0, done.output
        *_, files = hub.repositories["me/pushed"].commits.values()
        assert b"secret" not in files.values()
        get("me/pushed", "--force")
        assert not (installed_bundle("me/pushed") / "own").exists()
        assert not any("secret" in name for name in bundle_files(bundle) or ())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("../x",), 2, "model"),
        ((BUNDLE, "--as", "../x"), 2, "model"),
        ((BUNDLE, "--revision", "../../x"), 1, "revision"),
        ((BUNDLE, "--revision", "v9"), 1, "revision v9"),
        ((BUNDLE, "--attention"), 2, "--attention"),
        ((BUNDLE, "--no-attention"), 2, "attention"),
        (("someone/else",), 1, "repository someone/else"),
        (("someone/empty",), 1, "translate-trt recognizes"),
        (("firefox:english",), 2, "language pair"),
    ],
)  # fmt: skip
def test_errors(
    arguments: tuple[str, ...], code: int, message: str, hub: Hub, bundle_repository: Repository,
    store: Path,
) -> None:  # fmt: skip
    hub.repository("someone/empty").commit({"README.md": b"", "manifest.json": b"{}"})
    done = run("get", *arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.output
    assert installed_models() == []
    assert {path.name for path in store.glob("*")} <= {".downloads"}


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({}, "states no license"),
        ({"license": "cc-by-nc-4.0"}, "excludes commercial use"),
        ({"license": "other", "license_name": "nllb-noncommercial"}, "excludes commercial use"),
        ({"license": "cc-by-4.0"}, None),
    ],
)
def test_licenses(
    card: dict[str, str], message: str | None, hub: Hub, bundle_repository: Repository
) -> None:
    bundle_repository.card = card
    done = get(BUNDLE)
    assert "warning" in done.stderr if message else "warning" not in done.stderr
    assert message is None or message in done.stderr


def test_push_and_pull(hub: Hub, make_bundle: Callable[..., Path], store: Path) -> None:
    bundle = make_bundle()
    manifest = read_manifest(bundle)
    entry = manifest.targets["onnx-int8"]
    parity = {"sentences": 200, "identical_percent": 91.5, "bleu": 30.0, "reference_bleu": 30.25,
              "passed": True, "gate": "BLEU at most 0.3 lower", "date": "2026-01-31"}  # fmt: skip
    targets = {
        "onnx-fp32": replace(manifest.targets["onnx-fp32"], parity=None),
        "onnx-int8": replace(entry, parity=parity),
    }
    write_manifest(
        bundle, replace(manifest, targets=targets, source_language="en", target_language="de")
    )
    done = run("push", str(bundle), "me/pushed", "--license", "cc-by-4.0", "--message", "first")
    assert done.exit_code == 0, done.output
    _, sha = hub.repositories["me/pushed"].commits  # the first one creates the repository
    assert done.stdout == f"me/pushed: commit {sha}\n"
    files = hub.repositories["me/pushed"].commits[sha]
    card = files["README.md"].decode()
    assert "license: cc-by-4.0\n" in card
    assert "- de\n- en\n" in card
    assert "translate-trt translate --bundle me/pushed\n" in card
    assert (
        "| onnx-int8 | 200 | 91.50 | 30.00 | 30.25 | passed: BLEU at most 0.3 lower | 2026-01-31 |"
        in card
    )
    assert "| onnx-fp32 | not verified |" in card
    get("me/pushed")
    pulled = installed_bundle("me/pushed")
    assert read_manifest(pulled) == read_manifest(bundle)
    # An installed model keeps its origin, and a second push replaces files of the first.
    done = run("push", "pushed", "me/pushed", "--license", "mit")
    assert done.exit_code == 0, done.output
    second = list(hub.repositories["me/pushed"].commits)[-1]
    card = hub.repositories["me/pushed"].commits[second]["README.md"].decode()
    assert f"Made from me/pushed at {sha} (bundle)." in card
    assert "license: mit\n" in card


def test_a_push_deletes_files_of_the_former_bundle_alone(
    hub: Hub, make_bundle: Callable[..., Path], bundle_repository: Repository
) -> None:
    [former] = bundle_repository.commits.values()
    bundle_repository.commit({**former, "LICENSE": b"text", "targets/notes.txt": b"mine"})
    small = make_bundle("small", ("onnx-int8",))
    arguments = ("push", str(small), BUNDLE, "--license", "mit")
    hub.before_commit = lambda repository: repository.commit({"meanwhile": b""})
    done = run(*arguments)
    assert (done.exit_code, "Precondition Failed" in done.stderr) == (1, True)
    hub.before_commit = lambda _: None
    bundle_repository.commit({**former, "LICENSE": b"text", "targets/notes.txt": b"mine"})
    assert run(*arguments).exit_code == 0
    *_, files = bundle_repository.commits.values()
    own = {path.relative_to(small).as_posix() for path in small.rglob("*") if path.is_file()}
    assert set(files) == {*own, "README.md", "LICENSE", "targets/notes.txt"}
    get(BUNDLE)
    # A manifest of another program names no files of a bundle.
    bundle_repository.commit({"manifest.json": b"{}", "shared.spm": b"x", "other.onnx": b"x"})
    assert run(*arguments).exit_code == 0
    *_, files = bundle_repository.commits.values()
    assert set(files) == {*own, "README.md", "other.onnx"}


def test_damaged_bundles_are_not_pushed(hub: Hub, make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle()
    (bundle / "targets/onnx-int8/step.onnx").write_text("changed")
    done = run("push", str(bundle), "me/pushed", "--license", "mit")
    assert (done.exit_code, "step.onnx" in done.stderr) == (1, True)
    assert hub.repositories == {}
    assert "Missing option '--license'" in run("push", str(bundle), "me/pushed").stderr
