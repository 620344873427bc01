"""Malicious and truncated files: oversized declarations, missing parts and pickled code."""

from __future__ import annotations

import codecs
import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentencepiece import sentencepiece_model_pb2

from translate_trt.export.importers.hugging_face.directory import read_weights, tokens_by_id
from translate_trt.export.importers.imported import build_model
from translate_trt.export.importers.input_files import load_json
from translate_trt.export.importers.marian.decoder_settings import read_decoder_file
from translate_trt.export.importers.marian.files import read_vocabulary
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.torch_file import read_torch_file, tensors_of
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

SMALL: dict[str, Any] = {
    "vocabulary_size": 20, "encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 8,
    "heads": 2, "dropout": 0.0,
}  # fmt: skip


def header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    """Return the header of an array in numpy's format."""
    file = io.BytesIO()
    layout = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, layout)
    return file.getvalue()


def of_arrays(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def forged(path: Path, name: str, head: bytes, size: int, compression: int) -> None:
    """Write an entry of `size` more zeros than its declared size, which is that of `head`."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(name, head + bytes(size))
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.rindex(b"PK\x01\x02") + 24, len(head))
    path.write_bytes(content)


def an_array_in_bzip2(path: Path) -> None:
    forged(path, "a.npy", header((4,)) + bytes(16), 4 << 20, zipfile.ZIP_BZIP2)


def a_longer_array(path: Path) -> None:
    forged(path, "a.npy", header((4,)) + bytes(16), 4 << 20, zipfile.ZIP_DEFLATED)


def a_shorter_array(path: Path) -> None:
    of_arrays(path, {"a.npy": header((4,)) + bytes(16)})
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    checksum = zlib.crc32(header((4,)) + bytes(8))
    struct.pack_into("<II", content, place + 16, checksum, len(header((4,))) + 8)
    path.write_bytes(content)


def an_array_bomb(path: Path) -> None:
    size = 200 << 20
    content = header((size // 4,)) + bytes(size)
    of_arrays(path, {"a.npy": content}, zipfile.ZIP_DEFLATED)


Maker = Callable[[Path], None]


def archive_of(**arrays: bytes) -> Maker:
    return lambda path: of_arrays(path, {f"{name}.npy": text for name, text in arrays.items()})


ARRAYS: dict[str, tuple[Maker, str]] = {
    "huge-shape": (archive_of(a=header((2**25, 2**25)) + b"1234"), "cannot read .*model.npz: "),
    "negative-shape": (archive_of(a=header((-1, 4)) + b"1234"), "negative dimensions"),
    "more-bytes": (archive_of(a=header((1,)) + bytes(8)), "a.npy has more bytes"),
    "bomb": (an_array_bomb, "its unpacked files would take 209,"),
    "integers": (
        archive_of(a=header((4,), "|i1") + b"1234", settings=header((4,), "|i1") + b"a: 1"),
        "has elements of type int8",
    ),
    "damaged-header": (
        archive_of(a=header((4,)).replace(b"'descr': ", b"'descr':((") + bytes(16)),
        "cannot read .*model.npz: ",
    ),
    "header-of-another-type": (
        archive_of(a=header((4,)).replace(b"'<f4'", b"('',)") + bytes(16)),
        "cannot read .*model.npz: ",
    ),
    "bzip2": (an_array_in_bzip2, '"a.npy" is compressed with the zip method 12; only stored'),
    "longer": (a_longer_array, "cannot read .*model.npz: Bad CRC-32"),
    "shorter": (a_shorter_array, "expected 16 bytes got 8"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_marian(name: str, tmp_path: Path) -> None:
    make, message = ARRAYS[name]
    path = tmp_path / "model.npz"
    make(path)
    with pytest.raises(InputError, match=message):
        import_marian_model(path, tmp_path / "vocab.yml")


def a_torch_bomb(path: Path) -> None:
    torch.save({"model": {"x": torch.zeros(50 << 20)}}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    of_arrays(path, entries, zipfile.ZIP_DEFLATED)


def a_checkpoint_in_bzip2(path: Path) -> None:
    forged(path, "archive/data.pkl", pickle.dumps({"model": {}}, 2), 4 << 20, zipfile.ZIP_BZIP2)


class Reduced:
    """Object that a pickle makes by calling a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def sparse() -> torch.Tensor:
    place = torch.zeros(2, 1, dtype=torch.long)
    return torch.sparse_coo_tensor(place, torch.ones(1), (2**20, 2**20), check_invariants=True)


def saved(content: Callable[[], object], **options: bool) -> Maker:
    return lambda path: torch.save({"model": {"x": content()}}, path, **options)


def written(content: bytes) -> Maker:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


TEXT = "x" * 100_000  # which a pickle has once
CHECKPOINTS: dict[str, tuple[Maker, str]] = {
    "expanded": (
        saved(lambda: torch.ones(1).expand(2**40)),
        r"x has shape \[1099511627776\], but the file lacks its 4,398,046,511,104 bytes",
    ),
    "sparse": (saved(sparse), "x is a sparse, quantized or meta"),
    "without-memory": (
        saved(lambda: torch.empty(2**40, device="meta")), "x is a sparse, quantized or meta"
    ),
    "torch-bomb": (a_torch_bomb, "its unpacked files would take 209,"),
    "bzip2": (a_checkpoint_in_bzip2, 'data.pkl" is compressed with the zip method 12; only stored'),
    "bytearray": (saved(lambda: Reduced(bytearray, 2**40)), "calls builtins bytearray"),
    "bytearray-in-an-old-file": (
        saved(lambda: Reduced(bytearray, 2**40), _use_new_zipfile_serialization=False),
        "calls builtins bytearray",
    ),
    "hex": (saved(lambda: Reduced(codecs.encode, b"abc", "hex")), "calls _codecs encode, but"),
    "a-string-again-and-again": (
        saved(lambda: [Reduced(codecs.encode, TEXT, "latin1") for _ in range(3_000)]),
        "has strings of 300,000,000 bytes",
    ),
    "code": (written(pickle.dumps(Reduced(print, "harm"), 2)), r"an object of \S*print"),
    "code-of-torch": (saved(lambda: Reduced(print, "harm")), r"an object of \S*print"),
    "no-pickle": (written(b"garbage" * 30), "is damaged, or"),
    "empty": (written(b""), "is damaged, or"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_torch(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, message = CHECKPOINTS[name]
    path = tmp_path / "checkpoint.pt"
    make(path)
    with pytest.raises(InputError, match=message) as found:
        tensors_of(path, read_torch_file(path, [], "fairseq")["model"], "model")
    said = [str(found.value)]
    if name in ("code", "no-pickle", "empty", "torch-bomb"):  # the others have fairseq's layout
        path.rename(tmp_path / "pytorch_model.bin")
        with pytest.raises(InputError, match=message) as found:
            read_weights(tmp_path)
        said.append(str(found.value))
    # Messages omit torch's advice to load the file unprotected.
    assert not any("weights_only" in text or "\n" in text for text in said)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("archive", [True, False])
def test_numbers_of_numpy_are_accepted(archive: bool, tmp_path: Path) -> None:
    content = {
        "model": {"x": torch.ones(2)}, "best": [np.float64(1.5), np.float32(2)] * 1_000,
        "tokens": ["hex", "latin1", "zip"], "bytes": [b"abc\xff", bytearray(b"x")],
    }  # fmt: skip
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    found = read_torch_file(path, [], "fairseq")
    assert tensors_of(path, found["model"], "model")["x"].tolist() == [1.0, 1.0]


def test_sizes_of_a_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vocab_size is 10,000,000,000"):
        tokens_by_id(tmp_path / "vocab.json", {"a": 0}, 10**10)
    assert tokens_by_id(tmp_path / "vocab.json", {"a": 1}, 3) == ["<unused-0>", "a", "<unused-2>"]


def test_deeply_nested_json(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(InputError, match="JSON"):
        load_json(path)


def test_a_shard_whose_name_no_file_can_have(tmp_path: Path) -> None:
    listed = {"weight_map": {"a": "x" * 300 + ".safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match="lists"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("decoder.yml", f"models: {'[' * 3_000}{']' * 3_000}\n"),
        ("decoder.yml", 'models: "\\U00110000"\n'),
        ("vocab.yml", '"\\U00110000": 0\n'),
        ("vocab.yml", '"\\ud83d": 0\n'),
        ("vocab.yml", "a: \u00b2\n"),
    ],
    ids=["nested", "setting", "token", "surrogate", "superscript"],
)
def test_yaml_of_marian(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    read = read_vocabulary if name == "vocab.yml" else read_decoder_file
    with pytest.raises(InputError, match=r"has the line|is not a token and an id"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "shapes",
    [
        {"source": (8,)}, {"target": ()}, {"output": (8, 2, 2)}, {"target": (7, 2)},
        {"bias": (5,)}, {"bias": (1, 8)},
    ],
    ids=str,
)  # fmt: skip
def test_shapes_of_the_token_matrices(shapes: dict[str, tuple[int, ...]]) -> None:
    tokens = TokenMap([f"w{index}" for index in range(8)], SpecialTokens(0, 1, 2, 3))
    whole = {"source": (8, 2), "target": (8, 2), "output": (8, 2), "bias": (8,)}
    Matrices(**{name: torch.zeros(shape) for name, shape in whole.items()}).check(
        "x", tokens, tokens
    )
    spoiled = {name: torch.zeros(shape) for name, shape in (whole | shapes).items()}
    with pytest.raises(InputError):
        Matrices(**spoiled).check("x", tokens, tokens)


def test_a_configuration_larger_than_its_weights(tmp_path: Path) -> None:
    weights = Transformer(ModelConfig(**SMALL)).state_dict()
    config = ModelConfig(**{**SMALL, "d_ff": 10**13})
    with pytest.raises(InputError, match=r"shape \[8.*\[10000000000000"):
        build_model(config, weights, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(value: float, tmp_path: Path) -> None:
    config = ModelConfig(**SMALL)
    weights = Transformer(config).state_dict()
    weights["encoder.0.feed_forward.inner.weight"][3, 4] = value
    with pytest.raises(InputError, match=r"encoder\.0\.feed_forward\.inner.*NaN"):
        build_model(config, weights, tmp_path)


def test_truncated_sentencepiece_models(tokenizer_model: Path, tmp_path: Path) -> None:
    """Truncation between two parts leaves a valid protobuf message."""
    path = tmp_path / "cut.spm"
    for part in ("trainer_spec", "normalizer_spec"):
        cut = sentencepiece_model_pb2.ModelProto.FromString(tokenizer_model.read_bytes())
        cut.ClearField(part)
        cut.ClearField("normalizer_spec")
        del cut.pieces[-9:]
        path.write_bytes(cut.SerializeToString())
        with pytest.raises(InputError, match=f"no {part} after its {len(cut.pieces)} pieces"):
            read_vocabulary(path)
