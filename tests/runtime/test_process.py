from __future__ import annotations

import ctypes

import pytest

from translate_trt.runtime.process import return_large_blocks


@pytest.mark.parametrize("given", [None, "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_large_blocks_go_back_to_the_system_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    calls = []

    class Library:
        def mallopt(self, *arguments: int) -> None:
            calls.append(arguments)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    for name in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(given, "")
    return_large_blocks()
    assert calls == ([(-3, 4 * 2**20)] if given is None else [])


def test_other_c_libraries_keep_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    return_large_blocks()
