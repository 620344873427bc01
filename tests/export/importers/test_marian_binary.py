"""Binary models in Marian's layouts: quantized matrices, damaged files, files of random bytes."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from support.marian_files import (
    FLOAT32,
    INTGEMM,
    OPTIONS,
    SETTINGS,
    SETTINGS_TYPE,
    SSRU,
    binary_of,
    intgemm_data,
    quantized,
    random_weights,
    save,
    save_binary,
    settings_of,
)

from translate_trt.export.importers.marian.binary import read_binary
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.runtime.errors import InputError


def random_matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("name", INTGEMM)
def test_matrices_of_every_type(name: str, tmp_path: Path) -> None:
    """marian-conv stores the same integers in every layout."""
    matrix, path = random_matrix(128, 24), tmp_path / "model.bin"
    content = intgemm_data(matrix, name)
    path.write_bytes(binary_of([("a_W", INTGEMM[name], (128, 24), content)]))
    integers, multiplier = quantized(matrix, name)
    expected = integers.astype(np.float32) / np.float32(multiplier)
    np.testing.assert_array_equal(read_binary(path)["a_W"], expected)


def test_registers_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    content = bytes(48 * 24 + 4)
    multiplier = struct.pack("<f", 1.0)
    for shape in ((48, 24), (24, 48), (64, 12)):
        data = content[: shape[0] * shape[1]] + multiplier
        path.write_bytes(binary_of([("a_W", INTGEMM["intgemm8avx512"], shape, data)]))
        with pytest.raises(InputError, match=r'"a_W".*intgemm8av'):
            read_binary(path)


@pytest.mark.parametrize(
    ("name", "bergamot"), [("float32", False), ("intgemm8", False), ("intgemm16", True)]
)
def test_weights(name: str, bergamot: bool, tmp_path: Path) -> None:
    """A binary and an archive of the same numbers are the same model."""
    options = OPTIONS | SSRU
    weights, path = random_weights(options), tmp_path / "model.bin"
    stands_for = save_binary(path, options, weights, name, bergamot)
    assert all((stands_for[key] == weights[key]).all() for key in weights) == (name == "float32")
    npz, *vocabularies = save(tmp_path, options, stands_for)
    ours, theirs = (import_marian_model(file, *vocabularies) for file in (path, npz))
    assert ours.model.config == theirs.model.config
    for key, value in theirs.model.state_dict().items():
        np.testing.assert_array_equal(ours.model.state_dict()[key], value)


def test_half_precision(tmp_path: Path) -> None:
    matrix, path = random_matrix(4, 3), tmp_path / "model.bin"
    for kind, dtype in ((0x402, "<f2"), (0x408, "<f8")):
        path.write_bytes(binary_of([("a_b", kind, (4, 3), matrix.astype(dtype).tobytes())]))
        found = read_binary(path)["a_b"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, matrix.astype(dtype).astype(np.float32))


SMALL = struct.pack("<2f", 1.0, 2.0)


def item(
    name: str = "a_W", kind: int = FLOAT32, shape: tuple[int, ...] = (1, 2), data: bytes = SMALL
) -> tuple[str, int, tuple[int, ...], bytes]:
    return name, kind, shape, data


REFUSED: dict[str, bytes] = {
    '"a_W" is stored as packed8avx512, FBGEMM.* marian-conv --gemm-type intgemm8': binary_of(
        [item(kind=0x2801)]
    ),
    '"a_W" is stored as packed8avx2': binary_of([item(kind=0x1801)]),
    '"a_W" is stored as packed16': binary_of([item(kind=0x802)]),
    '"a_W" is stored as intgemm8avx512vnni, which Marian 1.12 does not': binary_of(
        [item(kind=0x13001)]
    ),
    '"a_W" has the element type 0x4201': binary_of([item(kind=0x4201)]),
    '"a_W" has the element type 0x101': binary_of([item(kind=SETTINGS_TYPE)]),
    '"special:model.yml" has the element type 0x404': binary_of([item(SETTINGS)]),
    "is encrypted": struct.pack("<QQ", 2, 1),
    "begins with the number 67324752, not": struct.pack("<Q", 0x4034B50),
    "it ends after 0 bytes, within the version": b"",
    "within the headers of 1,152,921,504,606,846,976 arrays": struct.pack("<QQ", 1, 1 << 60),
    "within the names": struct.pack("<QQ4Q", 1, 1, 1 << 50, FLOAT32, 2, 8),
    '"a_W" has 1,125,899,906,842,624 axes': struct.pack("<QQ4Q", 1, 1, 4, FLOAT32, 1 << 50, 8)
    + b"a_W\0",
    '"a_W" has 0 axes': binary_of([item(shape=())]),
    r'"a_W" has shape \[1, -2\]': binary_of([item(shape=(1, -2))]),
    r'"a_W" has shape \[1, 0\]': binary_of([item(shape=(1, 0))]),
    r'"a_W" has shape \[2147483647, 2147483647\], 18,446,744,056,529,682,436 bytes, but stores 25':
        binary_of([item(shape=(2**31 - 1, 2**31 - 1))]),
    r'"a_W" has shape \[1, 8\], 12 bytes, but stores 8': binary_of(
        [item(kind=INTGEMM["intgemm8"], shape=(1, 8))], 1
    ),
    r'"a_W", a matrix, has shape \[2\]': binary_of([item(kind=INTGEMM["intgemm8"], shape=(2,))]),
    '"a_W" has the multiplier 0.0': binary_of(
        [item(kind=INTGEMM["intgemm8"], data=b"ab" + struct.pack("<f", 0.0))]
    ),
    '"a_W" has the multiplier nan': binary_of(
        [item(kind=0x4101, data=b"ab" + struct.pack("<f", float("nan")))]
    ),
    'within "a_W"': binary_of([item()])[:-200],
    'it contains "a_W" twice': binary_of([item(), item()]),
    "the name .* is not UTF-8": binary_of([item()]).replace(b"a_W", b"\xff" * 3),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_files_that_are_refused(message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(REFUSED[message])
    with pytest.raises(InputError, match=message):
        read_binary(path)


def test_damaged_bytes(tmp_path: Path) -> None:
    """Files with random changes are imported or refused, in no case with another error."""
    options = OPTIONS | SSRU | {"enc-depth": 1}
    path = tmp_path / "model.bin"
    save_binary(path, options, random_weights(options), "intgemm8", bergamot=True)
    _, *vocabularies = save(tmp_path, options, random_weights(options))
    content, rng = path.read_bytes(), random.Random(4)
    start = content.index(settings_of(options).tobytes())
    refused = 0
    for attempt in range(60):
        changed = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            place = rng.choice([rng.randrange(3000), rng.randrange(start, len(content))])
            changed[place : place + 1] = rng.choice(
                [bytes([rng.randrange(256)]), bytes([changed[place] ^ 1 << rng.randrange(8)]), b""]
            )
        path.write_bytes(changed[: rng.choice([None, None, rng.randrange(len(changed))])])
        try:
            import_marian_model(path, *vocabularies, recorded_scales=attempt % 2 == 0)
        except InputError:
            refused += 1
    assert refused > 20
