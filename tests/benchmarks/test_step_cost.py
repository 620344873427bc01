"""Bytes and times that are computed from an execution plan."""

from __future__ import annotations

import pytest

from translate_trt.export.engines.plan import Kernel, Plan, Tensor

LIVE, CAPACITY = 64, 1224
CACHE = 2 * 8 * CAPACITY * 64 * 2  # bytes of [2, 8, P, 64] in FP16


def tensor(name: str, *dims: int | str, dtype: str = "half", constant: bool = False) -> Tensor:
    return Tensor(name, dtype, dims, name, constant)


def kernel(
    name: str, inputs: list[Tensor], outputs: list[Tensor], covered: int | None = None,
    kind: str = "function",
) -> Kernel:  # fmt: skip
    return Kernel(name, kind, (), tuple(inputs), tuple(outputs), covered=covered)


KEYS = tensor("next_self_key_0.1", 2, 8, CAPACITY, 64)
COPY = tensor("resh", 16, CAPACITY, 64)
NEW = tensor("new", 2, 8, 4, 64)
SCORES = tensor("scores", 2, 8, 4, LIVE, dtype="float")
WEIGHTS = tensor("weights", 512, 2048, constant=True)


def cost(*kernels: Kernel) -> list[dict[str, float]]:
    from step_cost import Shapes, costs

    return [vars(one) for one in costs(Plan(kernels), Shapes(CAPACITY, LIVE))]


def test_a_copied_cache_is_read_and_written_and_read_again() -> None:
    found = cost(
        kernel("__myl_Resh", [KEYS], [COPY], covered=CACHE // 2),
        kernel("_gemm_mha_v2", [NEW, COPY], [NEW]),
    )
    assert [one["caches"] for one in found] == [2 * CACHE, CACHE]
    assert found[0]["rest"] == 0


def test_of_a_sliced_cache_the_live_slots_count() -> None:
    (found,) = cost(kernel("__myl_SlicCastMulSum", [KEYS, NEW], [SCORES]))
    assert found["caches"] == CACHE * LIVE / CAPACITY
    assert found["rest"] == NEW.bytes + SCORES.bytes
    (found,) = cost(kernel("__myl_CastMulSum", [KEYS, NEW], [SCORES]))
    assert found["caches"] == CACHE


def test_an_update_in_place_counts_what_the_grid_covers() -> None:
    (found,) = cost(kernel("__myl_ReshTranScat", [KEYS, NEW], [KEYS], covered=4096))
    assert found["caches"] == 2 * 4096


def test_of_a_table_the_gathered_rows_count() -> None:
    table = tensor("embedding", 37_000, 512, constant=True)
    row = tensor("x", 8, 512)
    (found,) = cost(kernel("__myl_GathAdd", [table], [row], covered=4096))
    assert (found["weights"], found["rest"]) == (2 * 4096, 2 * 4096)
    # A reduction reads all of it.
    (found,) = cost(kernel("__myl_GathMaxrSum", [table], [row], covered=4096))
    assert found["weights"] == 2 * 37_000 * 512


def test_gemms_have_operations() -> None:
    x, y = tensor("x", 256, 512), tensor("y", 256, 2048)
    (found,) = cost(kernel("linear", [x, WEIGHTS], [y], kind="fully_connected"))
    assert found["operations"] == 2 * 256 * 512 * 2048
    assert found["weights"] == 2 * 512 * 2048


def test_dynamic_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="static shapes"):
        cost(kernel("__myl_Add", [tensor("x", "n", 512)], [NEW]))


def test_a_kernel_takes_the_longest_of_floor_bytes_and_operations() -> None:
    from step_cost import LAUNCH_SECONDS, Cost, Gpu, seconds, total

    gpu = Gpu("", bandwidth=1e12, operations=1e14, source="")
    given = [Cost(1e9, 0, 0), Cost(0, 1e5, 0), Cost(0, 0, 0, operations=5e11)]
    assert seconds(given, gpu) == pytest.approx(1e-3 + LAUNCH_SECONDS + 5e-3)
    assert total(given) == Cost(1e9, 1e5, 0, 5e11)
    assert total(given).bytes == 1e9 + 1e5
