from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime.bundle import (
    FORMAT_VERSION,
    FileEntry,
    hash_file,
    read_manifest,
    verify_files,
    write_manifest,
)
from translate_trt.runtime.errors import BundleError

MakeBundle = Callable[..., Path]


@pytest.fixture
def bundle(make_bundle: MakeBundle) -> Path:
    return make_bundle()


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = bundle / "manifest.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_what_is_written_is_read_back(bundle: Path, tmp_path: Path) -> None:
    manifest = read_manifest(bundle)
    (tmp_path / "copy").mkdir()
    write_manifest(tmp_path / "copy", manifest)
    assert read_manifest(tmp_path / "copy") == manifest
    assert (tmp_path / "copy/manifest.json").read_text() == (bundle / "manifest.json").read_text()
    assert manifest.source_language == "en"
    assert manifest.target_language is None
    assert manifest.targets["onnx-fp32"].features == ("attention",)
    assert manifest.targets["onnx-int8"].parity is None


def test_the_first_target_is_the_default(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    assert manifest.target().name == "onnx-fp32"
    assert manifest.target("onnx-int8").precision == "int8"


def test_unknown_target_lists_those_there_are(bundle: Path) -> None:
    with pytest.raises(BundleError, match="'tensorrt'; it has: onnx-fp32, onnx-int8"):
        verify_files(bundle, read_manifest(bundle), "tensorrt")


def test_search_defaults(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(search={"beam_size": 2, "length_penalty": 1}))
    options = read_manifest(bundle).search_options()
    assert (options.beam_size, options.length_penalty, options.min_length) == (2, 1, 0)


def test_path_missing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no bundle at"):
        read_manifest(tmp_path / "no")


def test_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(BundleError, match="not a directory"):
        read_manifest(tmp_path / "f")


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"it has no manifest\.json"):
        read_manifest(tmp_path)


def test_checkpoint_in_place_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BundleError, match="is a checkpoint and not a bundle"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b"PK\x03\x04"]
)
def test_manifest_that_is_not_json(bundle: Path, content: bytes) -> None:
    (bundle / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match="is not valid JSON"):
        read_manifest(bundle)


@pytest.mark.parametrize("content", ["[]", "null", "3"])
def test_manifest_that_is_no_object(bundle: Path, content: str) -> None:
    (bundle / "manifest.json").write_text(content)
    with pytest.raises(BundleError, match=r"outermost value.* must be an object"):
        read_manifest(bundle)


def test_newer_manifest_is_told_before_any_field(bundle: Path) -> None:
    (bundle / "manifest.json").write_text(json.dumps({"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(BundleError, match=r"newer translate-trt.*pip install -U translate-trt"):
        read_manifest(bundle)


def every_field(value: dict[str, Any], place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of the fields a manifest must have (free-form objects are not entered)."""
    found = []
    for name, inner in value.items():
        path = (*place, name)
        found.append(path)
        if isinstance(inner, dict) and name not in ("search", "builder", "parity"):
            found += every_field(inner, path)
    return [path for path in found if path[-1] not in ("onnx-fp32", "onnx-int8")]


def test_every_missing_or_mistyped_field_is_named(bundle: Path) -> None:
    path = bundle / "manifest.json"
    text = path.read_text()
    fields = every_field(json.loads(text))
    assert len(fields) > 40
    for *place, name in fields:
        for spoil in (
            lambda inner, name: inner.pop(name),
            lambda inner, name: inner.update({name: [7]}),
            lambda inner, name: inner.update({name: True}),
        ):
            value = json.loads(text)
            inner = value
            for step in place:
                inner = inner[step]
            spoil(inner, name)
            if name == "shortlist" and name not in inner:
                continue  # bundles from before there were any have no such field
            path.write_text(json.dumps(value))
            with pytest.raises(BundleError) as raised:
                read_manifest(bundle)
            assert repr(".".join((*place, name))) in str(raised.value)


@pytest.mark.parametrize(
    "search",
    [
        {"beams": 4},
        {"beam_size": "4"},
        {"beam_size": True},
        {"beam_size": 1.5},
        {"beam_size": 0},
        {"return_attention": 1},
        {"length_penalty_form": None},
        {"num_hypotheses": 9},
    ],
)
def test_bad_search_defaults(bundle: Path, search: dict[str, Any]) -> None:
    edit(bundle, lambda m: m.update(search=search))
    with pytest.raises(BundleError, match=r"the field 'search\."):
        read_manifest(bundle)


def test_no_targets(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(targets={}))
    with pytest.raises(BundleError, match="'targets' is empty"):
        read_manifest(bundle)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "a\\b", "C:x", "", ".", "a//b", "a/", "./a", "a\0b"],
)
def test_paths_that_could_lead_out(bundle: Path, path: str) -> None:
    with pytest.raises(BundleError, match="not allowed in a bundle"):
        FileEntry(path, "0" * 64, 0)
    edit(bundle, lambda m: m["tokenizer"]["source"].update(path=path))
    with pytest.raises(BundleError, match="not allowed in a bundle"):
        read_manifest(bundle)


def test_link_that_leads_out(bundle: Path, tmp_path: Path) -> None:
    inside = bundle / "targets/onnx-int8/step.onnx"
    inside.rename(tmp_path / "outside")
    inside.symlink_to(tmp_path / "outside")
    with pytest.raises(BundleError, match="outside the bundle"):
        verify_files(bundle, read_manifest(bundle), "onnx-int8")


def test_links_inside_and_to_the_bundle_are_fine(bundle: Path, tmp_path: Path) -> None:
    step = bundle / "targets/onnx-int8/step.onnx"
    step.rename(bundle / "elsewhere")
    step.symlink_to(bundle / "elsewhere")
    (tmp_path / "link").symlink_to(bundle)
    verify_files(tmp_path / "link", read_manifest(tmp_path / "link"), "onnx-int8")


def test_hash_of_a_file_larger_than_a_block(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(content)
    expected = FileEntry("f", hashlib.sha256(content).hexdigest(), len(content))
    assert hash_file(tmp_path, "f") == expected
    with pytest.raises(BundleError, match="cannot read"):
        hash_file(tmp_path, "no")


def test_untouched_files_pass(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    for name in manifest.targets:
        verify_files(bundle, manifest, name)


@pytest.mark.parametrize("name", ["shared.spm", "targets/onnx-int8/step.onnx"])
def test_missing_truncated_and_changed_files(bundle: Path, name: str) -> None:
    manifest = read_manifest(bundle)
    path = bundle / name
    content = path.read_bytes()

    path.write_bytes(content[:-1])
    with pytest.raises(BundleError, match=f"{len(content) - 1} bytes, .* {len(content)}"):
        verify_files(bundle, manifest, "onnx-int8", hashes=False)

    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    verify_files(bundle, manifest, "onnx-int8", hashes=False)
    with pytest.raises(BundleError, match=r"SHA-256 \w{64}, .* \w{64}: .*export") as raised:
        verify_files(bundle, manifest, "onnx-int8")
    assert str(path) in str(raised.value)

    path.unlink()
    with pytest.raises(BundleError, match="is missing"):
        verify_files(bundle, manifest, "onnx-int8", hashes=False)


def test_only_the_files_of_the_target_are_checked(bundle: Path) -> None:
    (bundle / "targets/onnx-int8/step.onnx").unlink()
    verify_files(bundle, read_manifest(bundle), "onnx-fp32")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("beams", 0, "at least 1"), ("slots", 0, "at least 1"), ("cache_type", "int8", "float16")],
)
def test_forms_that_no_graph_has(bundle: Path, field: str, value: object, message: str) -> None:
    edit(bundle, lambda m: m["targets"]["onnx-int8"]["form"].update({field: value}))
    with pytest.raises(
        BundleError, match=rf"targets\.onnx-int8\.form\.{field}' must be.*{message}"
    ):
        read_manifest(bundle)
