"""Search options: their checks, and conversion of numbers and sequences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from translate_trt.runtime import OptionError, SearchOptions
from translate_trt.runtime.options import read_sequences, write_sequences


@pytest.mark.parametrize(
    ("name", "options"),
    [
        # Types
        *(
            (name, {name: value})
            for name, values in {
                "beam_size": (2.5, 2.0, True, "4", None), "num_hypotheses": (math.nan,),
                "max_length": (9.5,), "min_length": ([1],), "max_extra_length": (None,),
                "no_repeat_ngram_size": (2.0,), "sampling_top_k": (2.5,),
                "length_penalty": (True, "0.6"), "repetition_penalty": ("2",),
                "early_stopping": (1,), "return_attention": (None,), "disable_unk": (1,),
                "length_penalty_form": (["gnmt"],), "source_language": (b"en",),
                "target_language": (7,), "suppress_sequences": ([[7]],),
            }.items()
            for value in values
        ),
        # Ranges
        *(
            (name, {name: value})
            for name, values in {
                "beam_size": (0,), "max_length": (0,), "min_length": (-1,),
                "max_extra_length": (-1,), "num_hypotheses": (0, 5),
                "length_penalty": (-1.0, math.nan, 1e300, 10.001, 10**400),
                "length_penalty_form": ("marian",), "alternatives": (-1,),
                "min_alternative_prob": (-0.1, 1.1, math.nan),
                "repetition_penalty": (0.9, math.nan), "no_repeat_ngram_size": (-1, 2**32 + 1),
                "suppress_sequences": ("", "7,,8", "7" + ",8" * 256, "7 x", "-1"),
                "sampling_top_k": (-1, 1025), "seed": (-1, 2**31),
            }.items()
            for value in values
        ),
        # Combinations
        ("min_length", {"min_length": 9, "max_length": 8}),
        ("num_hypotheses", {"alternatives": 3, "num_hypotheses": 2}),
        ("beam_size", {"sampling_top_k": 5, "beam_size": 4}),
        ("alternatives", {"sampling_top_k": 5, "alternatives": 2, "beam_size": 1}),
        ("sampling_top_p", {"sampling_top_k": 5, "sampling_top_p": 0, "beam_size": 1}),
        ("sampling_top_p", {"sampling_top_k": 5, "sampling_top_p": math.nan, "beam_size": 1}),
        ("sampling_top_p", {"sampling_top_k": 0, "sampling_top_p": 0.9, "beam_size": 1}),
        ("sampling_top_p", {"sampling_top_p": 0.8}),
        ("sampling_temperature", {"sampling_top_k": 5, "sampling_temperature": 0, "beam_size": 1}),
        ("sampling_temperature", {"sampling_temperature": 0.8}),
    ],
)  # fmt: skip
def test_invalid_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=name):
        SearchOptions(**options)


def test_numbers_of_numpy_become_python_s() -> None:
    options = SearchOptions(
        beam_size=np.int64(6),
        length_penalty=np.float32(0.5),
        max_length=np.uint8(9),  # type: ignore[arg-type]
    )
    assert options == SearchOptions(beam_size=6, length_penalty=0.5, max_length=9)
    assert [type(x) for x in (options.beam_size, options.length_penalty)] == [int, float]


def test_sequences_are_written_as_they_are_read() -> None:
    sequences = [[12, 40], [7]]
    assert write_sequences(sequences) == "12 40, 7"
    assert read_sequences("12 40, 7") == sequences
    assert write_sequences([]) is None
