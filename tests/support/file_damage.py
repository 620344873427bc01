"""Damaged files: readers either read them or say what is wrong."""

from __future__ import annotations

import contextlib
from random import Random

from support.file_texts import rendered
from translate_trt.runtime.errors import InputError

#: What most damage changes in a byte.
_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)


def read_damaged(content: bytes, name: str, count: int = 60) -> int:
    """Read a file with bytes cut, changed and inserted, and return how many versions are refused.

    Other exceptions than `InputError` pass.
    """
    rng, refused = Random(0), count
    for _ in range(count):
        with contextlib.suppress(InputError):
            rendered(spoiled(content, rng), name, target_language="de")
            refused -= 1
    return refused


def spoiled(content: bytes, rng: Random) -> bytes:
    """Return the content with bytes changed, removed, inserted or truncated."""
    data = bytearray(content)
    # Most of a file is numbers; names and sizes, where damage counts, are at the beginning and end.
    edge = rng.choice((64, 4096, len(data)))
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(min(edge, len(data)))
        if rng.random() < 0.5:
            place = len(data) - 1 - place
        way = rng.randrange(6)
        if way == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif way == 1:
            data[place] = rng.choice(_BYTES)
        elif way == 2:
            del data[place : place + rng.randrange(1, 40)]
        elif way == 3:
            data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40)))
        elif way == 4:
            data[place : place + 8] = bytes([rng.choice(_BYTES)]) * 8
        else:
            del data[place:]
        if not data:
            data += b"\0"
    return bytes(data)
