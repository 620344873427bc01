"""Serialization of `Contract` in a manifest.

Tensors that the host reads or writes must be present with the expected names, types and axes. Of
all other tensors the host only needs sizes and initial values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from translate_trt.runtime.bundle.contract import (
    CONSTRAINT_PROGRESS,
    CONSTRAINT_TOKENS,
    INITIAL,
    MARKED_FACTORS,
    MARKED_TOKENS,
    OTHER_PROGRESS,
    SAMPLING_NOISE,
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_P,
    TAIL_NOISE,
    TAIL_TOKENS,
    TYPES,
    Contract,
    ShortlistForm,
    TensorSpec,
)
from translate_trt.runtime.bundle.fields import Fields

#: Groups of tensors: field names of `Contract` and keys in the manifest.
_GROUPS = ("encoder_inputs", "encoder_outputs", "request", "state", "results")

_LETTERS = ("N", "K", "S", "P", "W", "B", "R", "D", "U")

# Element types of the initial values; "zeros" fits any type.
_INITIAL_TYPES = {
    "start_token": "int64",
    "masked": "float32",
    "minus_infinity": "float32",
    "first_lives": "float32",
    "ascending": "int64",
}


def to_json(contract: Contract) -> dict[str, Any]:
    """Convert the contract to JSON values, which `from_json` reads back."""
    form = contract.shortlist
    value: dict[str, Any] = {
        "shortlist": None if form is None else {"always": form.always, "each": form.each}
    }
    for group in _GROUPS:
        value[group] = {
            spec.name: {"dtype": spec.dtype, "axes": list(spec.axes)}
            | ({"initial": spec.initial, "in_place": spec.in_place} if group == "state" else {})
            for spec in getattr(contract, group)
        }
    return value


def from_json(fields: Fields) -> Contract:
    """Read a contract from the object `contract` of a target.

    Raises:
        BundleError: A field is missing or has the wrong type, a tensor that the host needs is
            missing, or a tensor is unknown.
    """
    shortlist = None
    if not fields.is_null("shortlist"):
        sizes = fields.object("shortlist")
        shortlist = ShortlistForm(sizes.integer("always", 1), sizes.integer("each", 1))
    groups = {
        group: {
            name: _read_spec(name, tensor, group == "state")
            for name, tensor in fields.object(group).objects()
        }
        for group in _GROUPS
    }
    beams = _size(fields.object("state"), groups["state"], "tokens", 1, "K")
    caches = [x for x in groups["state"].values() if x.in_place]
    slots = next((x.axes[2] for x in caches if len(x.axes) > 2), "P" if caches else 0)
    attention = "attention" in groups["results"]
    expected = _expected(beams, slots, attention, shortlist)
    of_changes = (MARKED_TOKENS, MARKED_FACTORS, SAMPLING_NOISE, SAMPLING_TEMPERATURE,
                  SAMPLING_TOP_P, TAIL_TOKENS, TAIL_NOISE, CONSTRAINT_TOKENS,
                  CONSTRAINT_PROGRESS, OTHER_PROGRESS)  # fmt: skip
    if groups["request"].keys() & set(of_changes):
        request = fields.object("request")
        marked = _size(request, groups["request"], MARKED_TOKENS, 2, "B")
        drawn = _size(request, groups["request"], SAMPLING_NOISE, 1, "R")
        tail = _size(request, groups["request"], TAIL_TOKENS, 1, "D")
        wanted = _size(request, groups["request"], CONSTRAINT_TOKENS, 1, "U")
        described = (f"int64 [N, {beams}, {marked}]", f"float32 [N, {beams}, {marked}]",
                     f"float32 [N, {drawn}]", "float32 [N]", "float32 [N]",
                     f"int64 [N, {tail}]", f"float32 [N, {tail}]",
                     f"int64 [N, {wanted}]", f"int64 [N, {beams}, {wanted}]",
                     f"int64 [N, {beams}]")  # fmt: skip
        expected["request"][0].update(zip(of_changes, described, strict=True))
    for group, (required, accepts) in expected.items():
        inside = fields.object(group)
        for name, wanted in required.items():
            inside.object(name)  # raises if the tensor is missing
            if (found := _described(groups[group][name])) != wanted:
                inside.fail(name, wanted, found)
            if groups[group][name].in_place:
                inside.fail(name, "a tensor that is not changed in place", found)
        for name, spec in groups[group].items():
            if name not in required and not accepts(spec):
                inside.fail(name, "a tensor that this version knows", _described(spec))
    for name in groups["encoder_outputs"].keys() & groups["state"].keys():
        fields.fail("state", "tensors of other names than the encoder's", name)
    specs = {group: tuple(named.values()) for group, named in groups.items()}
    return Contract(**specs, shortlist=shortlist)


def _read_spec(name: str, fields: Fields, is_state: bool) -> TensorSpec:
    dtype = fields.choice("dtype", TYPES)
    axes = tuple(fields.axes("axes", _LETTERS))
    if not is_state:
        return TensorSpec(name, dtype, axes)
    initial = fields.choice("initial", INITIAL)
    if _INITIAL_TYPES.get(initial, dtype) != dtype:
        fields.fail("initial", f"a value of {dtype}", initial)
    return TensorSpec(name, dtype, axes, initial, fields.boolean("in_place"))


def _size(
    fields: Fields, specs: dict[str, TensorSpec], name: str, axis: int, letter: str
) -> str | int:
    """Size or letter of one axis of a required tensor."""
    fields.object(name)
    axes = specs[name].axes
    if axis >= len(axes) or (isinstance(axes[axis], str) and axes[axis] != letter):
        fields.object(name).fail("axes", f"axes of which number {axis} is {letter}", list(axes))
    return axes[axis]


def _described(spec: TensorSpec) -> str:
    """Format type and axes, such as "float32 [N, 1, 1, S]"."""
    return f"{spec.dtype} [{', '.join(map(str, spec.axes))}]"


def _expected(
    k: str | int, capacity: str | int, attention: bool, shortlist: ShortlistForm | None
) -> dict[str, tuple[dict[str, str], Callable[[TensorSpec], bool]]]:
    """Return the required tensors of each group, and the predicate that others must satisfy."""
    beams = f"[N, {k}]"
    state = {
        "tokens": f"int64 {beams}",
        "log_probs": f"float32 {beams}",
        "positions": "int64 [N]",
        "done": "bool [N]",
        "finished_scores": f"float32 {beams}",
        "finished_lengths": f"int64 {beams}",
        "finished_parents": f"int64 {beams}",
        "finished_truncated": f"bool {beams}",
    }
    outputs, results = {"source_bias": "float32 [N, 1, 1, S]"}, {"parents": f"int64 {beams}"}
    if capacity:  # 0 without caches
        state["ancestry"] = f"float32 [N, {k}, P]"
    if capacity == "P":
        state["slots"], results["full"] = f"int64 {beams}", "bool [N]"
    if attention:
        results["attention"] = f"float32 [N, {k}, S]"
    if shortlist is not None:
        outputs["shortlist"] = "int64 [N, W]"
    inputs = {"source_ids": "int64 [N, S]", "source_lengths": "int64 [N]"}
    request = {
        "forced_tokens": "int64 [N]",
        "min_lengths": "int64 [N]",
        "max_lengths": "int64 [N]",
        "length_penalty_alpha": "float32 [N]",
        "length_penalty_beta": "float32 [N]",
        "early_stopping": "bool [N]",
    }

    def is_of_source(spec: TensorSpec) -> bool:
        return spec.axes[:1] == ("N",) and _letters(spec) == ["N", "S"]

    def is_state(spec: TensorSpec) -> bool:
        """Return True for caches [N, H, P, D] and tensors with one entry per sentence or beam."""
        others = _letters(spec)[1:]
        if spec.in_place:
            fits = len(spec.axes) == 4 and spec.axes[2] == capacity and others in ([], ["P"])
        else:
            fits = others in ([], ["K"])
        return fits and spec.axes[0] == "N"

    def nothing(spec: TensorSpec) -> bool:
        return False

    return {
        "encoder_inputs": (inputs, nothing),
        "encoder_outputs": (outputs, is_of_source),
        "request": (request, nothing),
        "state": (state, is_state),
        "results": (results, nothing),
    }


def _letters(spec: TensorSpec) -> list[str]:
    return [axis for axis in spec.axes if isinstance(axis, str)]
