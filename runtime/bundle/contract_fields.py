"""Serialization of `Contract` in a manifest.

The core checks that a target has the tensors that the host reads and writes, and their axes
(runtime/cpp/src/bundle/contract_fields.h); loading its graphs compares their names and types.
"""

from __future__ import annotations

from typing import Any

from translate_trt.runtime.bundle.contract import (
    INITIAL,
    TYPES,
    Contract,
    ShortlistForm,
    TensorSpec,
)
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.interface.tensors import LETTERS, TENSORS


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
        BundleError: A field is missing or has the wrong type.
    """
    shortlist = None
    if not fields.is_null("shortlist"):
        sizes = fields.object("shortlist")
        shortlist = ShortlistForm(sizes.integer("always", 1), sizes.integer("each", 1))
    groups = {
        group: tuple(
            _read_spec(name, tensor, group == "state")
            for name, tensor in fields.object(group).objects()
        )
        for group in TENSORS
    }
    return Contract(**groups, shortlist=shortlist)


def _read_spec(name: str, fields: Fields, is_state: bool) -> TensorSpec:
    dtype = fields.choice("dtype", TYPES)
    axes = tuple(fields.axes("axes", tuple(LETTERS)))
    if not is_state:
        return TensorSpec(name, dtype, axes)
    return TensorSpec(
        name, dtype, axes, fields.choice("initial", INITIAL), fields.boolean("in_place")
    )
