"""Serialization of `Contract` in a manifest.

Tensors that the host reads or writes must be present with the expected names, types and axes. Of
all other tensors the host only needs sizes and initial values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from translate_trt.runtime.bundle.contract import (
    INITIAL,
    TYPES,
    Contract,
    ShortlistForm,
    TensorSpec,
)
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.interface.tensors import LETTERS, STATIC, TENSORS, Tensor

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
    for group in TENSORS:
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
        for group in TENSORS
    }
    caches = [x for x in groups["state"].values() if x.in_place]
    slots = next((x.axes[2] for x in caches if len(x.axes) > 2), "P" if caches else 0)
    marks = {tensor.name for tensor in TENSORS["request"] if tensor.when == "marks"}
    holds = {
        "": True,
        "shortlist": shortlist is not None,
        "marks": bool(groups["request"].keys() & marks),
        "attention": "attention" in groups["results"],
        "caches": slots != 0,
        "free_slots": slots == "P",
    }
    letters: dict[str, str | int] = {}
    for group, tensors in TENSORS.items():
        inside, specs = fields.object(group), groups[group]
        declared = [x for x in tensors if not x.of_layers and holds[x.when]]
        for tensor in declared:
            inside.object(tensor.name)  # raises if it is missing
            spec = specs[tensor.name]
            wanted = f"{tensor.dtype} [{', '.join(_axes(tensor, spec, letters))}]"
            if (found := _described(spec)) != wanted:
                inside.fail(tensor.name, wanted, found)
            if spec.in_place:
                inside.fail(tensor.name, "a tensor that is not changed in place", found)
        known, fits = {tensor.name for tensor in declared}, _OTHERS.get(group)
        for name, spec in specs.items():
            if name not in known and not (fits and fits(spec, slots)):
                inside.fail(name, "a tensor that this version knows", _described(spec))
    for name in groups["encoder_outputs"].keys() & groups["state"].keys():
        fields.fail("state", "tensors of other names than the encoder's", name)
    of_groups = {group: tuple(named.values()) for group, named in groups.items()}
    return Contract(**of_groups, shortlist=shortlist)


def _read_spec(name: str, fields: Fields, is_state: bool) -> TensorSpec:
    dtype = fields.choice("dtype", TYPES)
    axes = tuple(fields.axes("axes", tuple(LETTERS)))
    if not is_state:
        return TensorSpec(name, dtype, axes)
    initial = fields.choice("initial", INITIAL)
    if _INITIAL_TYPES.get(initial, dtype) != dtype:
        fields.fail("initial", f"a value of {dtype}", initial)
    return TensorSpec(name, dtype, axes, initial, fields.boolean("in_place"))


def _axes(tensor: Tensor, spec: TensorSpec, sizes: dict[str, str | int]) -> list[str]:
    """Axes that a declared tensor must have.

    Args:
        tensor: The declaration.
        spec: The tensor in the manifest.
        sizes: Static sizes by letter; the first tensor with a letter of STATIC sets its size.
    """
    axes = []
    for index, axis in enumerate(tensor.axes.split()):
        if axis in STATIC and index < len(spec.axes):
            found = spec.axes[index]
            if found == axis or isinstance(found, int):
                sizes.setdefault(axis, found)
        axes.append(str(sizes.get(axis, axis)))
    return axes


def _described(spec: TensorSpec) -> str:
    """Format type and axes, such as "float32 [N, 1, 1, S]"."""
    return f"{spec.dtype} [{', '.join(map(str, spec.axes))}]"


def _is_of_source(spec: TensorSpec, slots: str | int) -> bool:
    return spec.axes[:1] == ("N",) and _letters(spec) == ["N", "S"]


def _is_state(spec: TensorSpec, slots: str | int) -> bool:
    """Return True for caches [N, H, P, D] and tensors with one entry per sentence or beam."""
    others = _letters(spec)[1:]
    if spec.in_place:
        fits = len(spec.axes) == 4 and spec.axes[2] == slots and others in ([], ["P"])
    else:
        fits = others in ([], ["K"])
    return fits and spec.axes[0] == "N"


def _letters(spec: TensorSpec) -> list[str]:
    return [axis for axis in spec.axes if isinstance(axis, str)]


# Predicates of tensors that the table does not name, by group; other groups have none.
_OTHERS: dict[str, Callable[[TensorSpec, str | int], bool]] = {
    "encoder_outputs": _is_of_source,
    "state": _is_state,
}
