"""Damaged files: readers either read them or say what is wrong."""

from __future__ import annotations

import contextlib
from random import Random

from support.file_texts import rendered
from translate_trt.runtime.errors import InputError


def read_damaged(content: bytes, name: str, count: int = 60) -> int:
    """Read a file with bytes cut, changed and inserted, and return how many versions are refused.

    Other exceptions than `InputError` pass.
    """
    random, refused = Random(0), 0
    for number in range(count):
        damaged = bytearray(content)
        at = random.randrange(len(content))
        if number % 4 == 0:
            del damaged[at:]
        elif number % 4 == 1:
            damaged[at] ^= 1 << random.randrange(8)
        elif number % 4 == 2:
            damaged[at:at] = random.randbytes(random.randrange(1, 20))
        else:
            del damaged[at : at + random.randrange(1, 9)]
        refused += 1
        with contextlib.suppress(InputError):
            rendered(bytes(damaged), name, target_language="de")
            refused -= 1
    return refused
