from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bad_bundles import BAD_BUNDLES, BAD_PATHS, LAYOUTS, BadBundle, edit, spoiled_fields

from translate_trt.runtime.bundle.manifest import (
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


def test_what_is_written_is_read_back(bundle: Path, tmp_path: Path) -> None:
    manifest = read_manifest(bundle)
    (tmp_path / "copy").mkdir()
    write_manifest(tmp_path / "copy", manifest)
    assert read_manifest(tmp_path / "copy") == manifest
    assert (tmp_path / "copy/manifest.json").read_text() == (bundle / "manifest.json").read_text()
    assert manifest.source_language == "en"
    assert manifest.target_language is None
    assert manifest.targets["onnx-fp32"].contract.attention
    assert manifest.targets["onnx-int8"].parity is None


def test_the_first_target_is_the_default(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    assert manifest.target().name == "onnx-fp32"
    assert manifest.target("onnx-int8").precision == "int8"


def test_search_defaults(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(search={"beam_size": 2, "length_penalty": 1}))
    options = read_manifest(bundle).search_options()
    assert (options.beam_size, options.length_penalty, options.min_length) == (2, 1, 0)


@pytest.mark.parametrize("bad", BAD_BUNDLES, ids=lambda bad: bad.name)
def test_bad_bundles(bundle: Path, bad: BadBundle) -> None:
    bad.spoil(bundle)
    with pytest.raises(BundleError, match=bad.message):
        verify_files(bundle, read_manifest(bundle), "onnx-fp32")


def test_every_missing_or_mistyped_field_is_named(bundle: Path) -> None:
    path = bundle / "manifest.json"
    spoiled = list(spoiled_fields(path.read_text()))
    assert len(spoiled) > 120
    for text, field in spoiled:
        path.write_text(text)
        with pytest.raises(BundleError) as raised:
            read_manifest(bundle)
        assert field in str(raised.value)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_could_lead_out(path: str) -> None:
    with pytest.raises(BundleError, match="allowed"):
        FileEntry(path, "0" * 64, 0)


def test_links_inside_and_to_the_bundle_are_fine(bundle: Path, tmp_path: Path) -> None:
    step = bundle / "targets/onnx-int8/step.onnx"
    step.rename(bundle / "elsewhere")
    step.symlink_to(bundle / "elsewhere")
    (tmp_path / "link").symlink_to(bundle)
    verify_files(tmp_path / "link", read_manifest(tmp_path / "link"), "onnx-int8")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bundles_of_links(bundle: Path, layout: str) -> None:
    """The manifest and its files may be links to other places."""
    manifest = read_manifest(bundle)
    LAYOUTS[layout](bundle)
    assert read_manifest(bundle) == manifest
    for name in manifest.targets:
        verify_files(bundle, manifest, name)
    blob = (bundle / "manifest.json").resolve()
    content = blob.read_bytes()
    write_manifest(bundle, manifest)
    assert blob.read_bytes() == content
    assert not (bundle / "manifest.json").is_symlink()


def test_hash_of_a_file_larger_than_a_block(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(content)
    expected = FileEntry("f", hashlib.sha256(content).hexdigest(), len(content))
    assert hash_file(tmp_path, "f") == expected
    with pytest.raises(BundleError, match="cannot read"):
        hash_file(tmp_path, "no")


def test_hashes_are_checked_on_request(bundle: Path) -> None:
    """Sizes are checked always; BAD_BUNDLES are read with hashes."""
    manifest, path = read_manifest(bundle), bundle / "shared.spm"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    verify_files(bundle, manifest, "onnx-int8", hashes=False)
    path.write_bytes(content[:-1])
    with pytest.raises(BundleError, match=f"{len(content) - 1} bytes, .* {len(content)}"):
        verify_files(bundle, manifest, "onnx-int8", hashes=False)


def test_only_the_files_of_the_target_are_checked(bundle: Path) -> None:
    (bundle / "targets/onnx-int8/step.onnx").unlink()
    verify_files(bundle, read_manifest(bundle), "onnx-fp32")
