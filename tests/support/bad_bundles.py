"""Invalid bundles of every kind, for the readers in Python and C++."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.runtime.bundle.manifest import FORMAT_VERSION
from translate_trt.runtime.bundle.term_annotation import TermAnnotation

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class BadBundle:
    """One defect of a bundle.

    Attributes:
        name: of the case.
        spoil: does it to a good bundle, the target of whose first name is "onnx-fp32".
        message: pattern that the reader's error must match.
    """

    name: str
    spoil: Callable[[Path], object]
    message: str


def edit(bundle: Path, change: Change) -> None:
    """Apply the defect to the manifest."""
    path = bundle / "manifest.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def _edited(name: str, change: Change, message: str) -> BadBundle:
    return BadBundle(name, lambda bundle: edit(bundle, change), message)


def _written(name: str, content: bytes, message: str) -> BadBundle:
    def write(bundle: Path) -> None:
        (bundle / "manifest.json").write_bytes(content)

    return BadBundle(name, write, message)


def _file(name: str, path: str, change: Callable[[Path], object], message: str) -> BadBundle:
    return BadBundle(name, lambda bundle: change(bundle / path), message)


def _remove_manifest(bundle: Path) -> None:
    (bundle / "manifest.json").unlink()


def _become_checkpoint(bundle: Path) -> None:
    (bundle / "manifest.json").rename(bundle / "config.json")


def _go(bundle: Path) -> None:
    bundle.rename(bundle.with_name(f"{bundle.name}-moved"))


def _become_file(bundle: Path) -> None:
    _go(bundle)
    bundle.write_text("x")


def _lead_out(path: Path) -> None:
    """Replace a file by a link to a file outside the bundle."""
    outside = path.parents[3] / "outside"
    outside.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    path.symlink_to(outside)


def _lead_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[3] / "nothing")


def link_into_a_cache(bundle: Path) -> None:
    """Lay a bundle out as snapshot_download does: every file is a link to its content's hash."""
    blobs = bundle.parent / "blobs"
    blobs.mkdir()
    for path in sorted(bundle.rglob("*")):
        if path.is_file() and not path.is_symlink():
            blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
            path.replace(blob)
            path.symlink_to(os.path.relpath(blob, path.parent))


def link_into_a_volume(bundle: Path) -> None:
    """Lay a bundle out as a Kubernetes volume does: links through a linked directory."""
    hidden = bundle / "..2026_01_01"
    hidden.mkdir()
    (bundle / "..data").symlink_to(hidden.name)
    for path in sorted(bundle.iterdir()):
        if not path.name.startswith(".."):
            path.rename(hidden / path.name)
            path.symlink_to(f"..data/{path.name}")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "hub-cache": link_into_a_cache, "volume": link_into_a_volume,
}  # fmt: skip


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def _prompt(name: str, value: object) -> Change:
    return lambda m: m["prompt"].update({name: value})


def _contract(group: str, name: str, value: object) -> Change:
    """Return a change of one tensor's fields; None removes the tensor."""

    def change(manifest: dict[str, Any]) -> None:
        tensors = manifest["targets"]["onnx-fp32"]["contract"][group]
        if value is None:
            del tensors[name]
        else:
            tensors[name] = tensors.get(name, {}) | value if isinstance(value, dict) else value

    return change


BAD_SEARCHES: tuple[dict[str, Any], ...] = (
    {"beams": 4}, {"beam_size": "4"}, {"beam_size": True}, {"beam_size": 1.5}, {"beam_size": 0},
    {"return_attention": 1}, {"length_penalty_form": None}, {"length_penalty_form": "none"},
    {"num_hypotheses": 9}, {"max_length": 0}, {"min_length": -1}, {"length_penalty": -1},
    {"length_penalty": "0.6"}, {"source_language": 3}, {"target_language": ["de"]},
)  # fmt: skip
BAD_PROMPTS: tuple[tuple[str, object], ...] = (
    ("target_side", "left"), ("source", [1, -1]), ("source", [1.5]), ("target", ["de"]),
    ("target", 7), ("source_languages", ["en"]), ("target_languages", {"de": None}),
    ("source", [320]), ("target_languages", {"de": 2**63 - 1}), ("source_languages", {"en": 320}),
)  # fmt: skip
# Group, tensor, and its other fields; None for a missing tensor.
_IN_PLACE = {"dtype": "float32", "initial": "zeros", "in_place": True}
_STATE = {"dtype": "int64", "initial": "zeros", "in_place": False}
BAD_TENSORS: tuple[tuple[str, str, object], ...] = (
    ("encoder_inputs", "source_ids", 3),
    ("encoder_outputs", "cross_key_0", {"axes": ["N", 0, "S"]}),
    ("encoder_outputs", "cross_key_0", {"axes": ["N", "X"]}),
    ("encoder_outputs", "cross_key_0", {"axes": []}),
    ("encoder_outputs", "cross_key_0", {"dtype": "float64"}),
    ("state", "tokens", {"initial": "seven"}),
    ("state", "done", {"in_place": 1}),
)
# Tensors that the core alone compares with those that it knows.
BAD_CONTRACTS: tuple[tuple[str, str, object], ...] = (
    ("encoder_inputs", "source_ids", None),
    ("encoder_inputs", "more", {"dtype": "int64", "axes": ["N"]}),
    ("encoder_outputs", "source_bias", {"dtype": "float16"}),
    ("encoder_outputs", "cross_key_0", {"axes": ["N", 4, 8]}),
    ("encoder_outputs", "cross_key_0", {"axes": ["S", "N", 8]}),
    ("encoder_outputs", "shortlist", {"dtype": "int64", "axes": ["N", "W"]}),
    ("encoder_outputs", "tokens", {"dtype": "int64", "axes": ["N", "S"]}),  # also of the state
    ("request", "early_stopping", None),
    ("request", "temperature", {"dtype": "float32", "axes": ["N"]}),
    ("state", "tokens", None),
    ("state", "tokens", {"axes": ["N"]}),
    ("state", "tokens", {"axes": ["N", "S"]}),
    ("state", "tokens", {"axes": ["N", 4]}),
    ("state", "tokens", {"initial": "masked"}),
    ("state", "done", {"initial": "start_token"}),
    ("state", "done", {"in_place": True}),
    ("state", "ancestry", {"in_place": True}),
    ("state", "ancestry", {"axes": ["N", "K", 7]}),
    ("state", "self_key_0", {"axes": ["N", 4, "P"]}),
    # The first cache determines the number of slots, which the second one then does not have.
    ("state", "self_key_0", {"axes": ["N", "P", 4, 8]}),
    ("state", "more", {**_IN_PLACE, "axes": ["K", 4, "P", 8]}),
    ("state", "more", {**_STATE, "axes": ["N", "S"]}),
    ("state", "more", {**_STATE, "axes": ["K", "N"]}),
    ("results", "full", None),
    ("results", "more", {"dtype": "int64", "axes": ["N"]}),
    ("results", "attention", {"axes": ["N", "S"]}),
)
BAD_PATHS = (
    "/etc/passwd", "../x", "a/../../x", "a\\b", "C:x", "", ".", "a//b", "a/", "./a", "a\0b",
)  # fmt: skip
BAD_ANNOTATIONS: tuple[dict[str, object], ...] = (
    {"form": "prepend"}, {"symbols": ["a", "b"]}, {"symbols": ["a", "b", " "]},
    {"symbols": ["a", "b", "b"]}, {"symbols": ["a", "b", "cd"]}, {"symbols": "abc"},
)  # fmt: skip
STEP = "targets/onnx-fp32/step.onnx"


def _tensor_cases(cases: Iterable[tuple[str, str, object]]) -> Iterator[BadBundle]:
    for group, name, value in cases:
        yield _edited(
            f"{group}.{name} {value!r:.60}", _contract(group, name, value),
            r"the field 'targets\.onnx-fp32\.contract\.",
        )  # fmt: skip


#: Bundles that both readers refuse.
BAD_BUNDLES = (
    BadBundle("missing", _go, "there is no bundle"),
    BadBundle("a file", _become_file, "not a directory"),
    BadBundle("no manifest", _remove_manifest, r"it has no manifest\.json"),
    BadBundle("a checkpoint", _become_checkpoint, "is a checkpoint and not a bundle"),
    *(
        _written(f"not JSON: {content[:10]!r}", content, "is not valid JSON")
        for content in (b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b"PK\x03\x04")
    ),
    _written("nested too deeply", b"[" * 100_000 + b"]" * 100_000, "is not valid JSON"),
    *(
        _written(f"no object: {content!r}", content, "outermost value.* must be an object")
        for content in (b"[]", b"null", b"3")
    ),
    _written(
        "a newer format",  # which is told before any field
        json.dumps({"format_version": FORMAT_VERSION + 1}).encode(),
        r"has format version .*[Uu]pgrade",
    ),
    _written(
        "an older format",
        json.dumps({"format_version": FORMAT_VERSION - 1}).encode(),
        r"has format version .*Export the model again",
    ),
    *(
        _edited(f"search {search}", lambda m, s=search: m.update(search=s), r"the field 'search\.")
        for search in BAD_SEARCHES
    ),
    *(
        _edited(f"prompt.{name} {value!r:.40}", _prompt(name, value), "the field 'prompt")
        for name, value in BAD_PROMPTS
    ),
    _edited(
        "a prompt that leaves no room",
        _prompt("source", [5] * 15),
        r"the field 'limits\.max_source_length'",
    ),
    *(
        _edited(
            f"term_annotation {damage}",
            lambda m, d=damage: m.update(term_annotation=TermAnnotation().to_json() | d),
            rf"term_annotation\.{next(iter(damage))}",
        )
        for damage in BAD_ANNOTATIONS
    ),
    _edited("no targets", lambda m: m.update(targets={}), "'targets' is empty"),
    *(
        _edited(
            f"the path {path!r}",
            lambda m, p=path: m["tokenizer"]["source"].update(path=p),
            "not allowed in a bundle",
        )
        for path in BAD_PATHS
    ),
    *(
        _edited(
            f"the hash {text!r}",
            lambda m, t=text: m["tokenizer"]["source"].update(sha256=t),
            "hexadecimal",
        )
        for text in ("", "0" * 63, "A" * 64)
    ),
    *(
        _edited(
            f"shortlist {value!r}",
            lambda m, v=value: m["targets"]["onnx-fp32"]["contract"].update(shortlist=v),
            rf"targets\.onnx-fp32\.contract\.shortlist{message}",
        )
        for value, message in (
            (3, "' must be an object"),
            ({"always": 0, "each": 1}, r"\.always' must be a whole number of at least 1"),
            ({"always": 9}, r"\.each' is missing"),
        )
    ),
    *_tensor_cases(BAD_TENSORS),
    _file("a link to another content", STEP, _lead_out, r"SHA-256 \w{64}, the manifest says"),
    _file("a link to nothing", STEP, _lead_nowhere, "is missing"),
    *(
        case
        for path in ("shared.spm", STEP)
        for case in (
            _file(f"{path} is missing", path, Path.unlink, "is missing"),
            _file(f"{path} is truncated", path, _truncate, r"bytes, the manifest says \d+"),
            _file(f"{path} is changed", path, _damage, r"SHA-256 \w{64}, the manifest says"),
        )
    ),
)

#: Bundles that the core refuses.
BAD_FOR_THE_CORE = (*BAD_BUNDLES, *_tensor_cases(BAD_CONTRACTS))


# Objects of any fields, and tensors, which BAD_CONTRACTS are about.
_NOT_ENTERED = ("search", "builder", "parity", "encoder_inputs", "encoder_outputs", "request",
                "state", "results")  # fmt: skip


def every_field(value: dict[str, Any], place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all required fields of a manifest."""
    found = []
    for name, inner in value.items():
        path = (*place, name)
        found.append(path)
        if isinstance(inner, dict) and name not in _NOT_ENTERED:
            found += every_field(inner, path)
    return [path for path in found if path[-1] not in ("onnx-fp32", "onnx-int8")]


def spoiled_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield manifests with one missing or mistyped field, and the field's name in messages."""
    spoilers: tuple[Callable[[dict[str, Any], str], object], ...] = (
        lambda inner, name: inner.pop(name),
        lambda inner, name: inner.update({name: [-7]}),
        lambda inner, name: inner.update({name: True}),
    )
    for *place, name in every_field(json.loads(text)):
        for spoil in spoilers:
            value = json.loads(text)
            inner = value
            for step in place:
                inner = inner[step]
            spoil(inner, name)
            if name == "source_end" and inner.get(name) is True:
                continue
            yield json.dumps(value), repr(".".join((*place, name)))
