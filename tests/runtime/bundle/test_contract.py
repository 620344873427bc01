from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from translate_trt.export.contract import GraphLayout, make_contract
from translate_trt.runtime.bundle import contract_fields
from translate_trt.runtime.bundle.contract import MASKED, NEXT, Contract, ShortlistForm, TensorSpec
from translate_trt.runtime.bundle.fields import Fields

DYNAMIC = make_contract(decoder_layers=2, heads=4, key_size=8, value_size=6)


def test_initial_state() -> None:
    state = DYNAMIC.initial_state(sentences=3, beams=2, start_token=7, slots=9)
    for spec in DYNAMIC.state:
        sizes = {"N": 3, "K": 2, "P": 9}
        assert state[spec.name].shape == tuple(sizes.get(str(axis), axis) for axis in spec.axes)
        assert state[spec.name].dtype == np.dtype(spec.dtype)
    assert (state["tokens"] == 7).all()
    assert state["log_probs"].tolist() == [[0.0, -np.inf]] * 3
    assert (state["finished_scores"] == -np.inf).all()
    assert not state["done"].any()
    assert not state["positions"].any()
    # Nothing was written: no slot is in a past, and the first step takes the first ones.
    assert (state["ancestry"] == MASKED).all()
    assert state["slots"].tolist() == [[0, 1]] * 3


STATIC = make_contract(2, 4, 8, 6, layout=GraphLayout(beams=3, slots=12, cache_type="float16"))


def test_static_caches_have_one_size_and_their_form_s_type() -> None:
    inputs = {spec.name: spec for spec in STATIC.step_inputs}
    outputs = {spec.name: spec for spec in STATIC.step_outputs}
    for spec in STATIC.state:
        assert outputs[NEXT + spec.name].axes == inputs[spec.name].axes
        assert "K" not in spec.axes
        assert ("P" in spec.axes) == (spec.name == "ancestry")  # a step reads as many slots
    # Static slots: the step number determines the slot, and every step has a slot.
    assert not {"slots", NEXT + "slots", "full"} & (inputs.keys() | outputs.keys())
    for name, spec in inputs.items():
        cache = name.startswith(("self_", "cross_"))
        assert (spec.dtype == "float16") == cache
    assert inputs["self_key_1"].axes == ("N", 4, 12, 8)
    assert inputs["ancestry"].axes == ("N", 3, "P")
    assert STATIC.slots == 12
    assert STATIC.initial_state(2, 3, 1)["ancestry"].shape == (2, 3, 12)
    assert STATIC.initial_state(2, 3, 1, slots=6)["ancestry"].shape == (2, 3, 6)


@pytest.mark.parametrize(
    "contract",
    [
        DYNAMIC,
        STATIC,
        make_contract(1, 2, 4, 4, True, GraphLayout(shortlist=ShortlistForm(20, 5))),
        make_contract(1, 2, 4, 4, layout=GraphLayout(2, 8, "bfloat16")),
    ],
    ids=["dynamic", "static", "shortlist", "bfloat16"],
)
def test_a_contract_comes_back_from_its_json(contract: Contract) -> None:
    text = json.dumps(contract_fields.to_json(contract))
    assert contract_fields.from_json(Fields(json.loads(text), Path("m.json"))) == contract


def test_state_that_the_host_knows_nothing_of_is_read_and_begins_as_it_says() -> None:
    cell = TensorSpec("cell_0", "float32", ("N", "K", 16), "masked")
    contract = dataclasses.replace(DYNAMIC, state=(*DYNAMIC.state, cell))
    value = contract_fields.to_json(contract)
    read = contract_fields.from_json(Fields(value, Path("m.json")))
    assert read == contract
    state = read.initial_state(sentences=2, beams=3, start_token=7)
    assert state["cell_0"].shape == (2, 3, 16)
    assert (state["cell_0"] == np.float32(MASKED)).all()


@pytest.mark.parametrize(("kind", "stored"), [("float16", "float16"), ("bfloat16", "uint16")])
def test_static_caches_start_hidden_and_of_their_own_size(kind: str, stored: str) -> None:
    contract = make_contract(1, 4, 8, 6, layout=GraphLayout(3, 12, kind))
    state = contract.initial_state(sentences=2, beams=3, start_token=7, slots=5)
    assert state["self_key_0"].shape == (2, 4, 12, 8)
    assert state["self_key_0"].dtype == np.dtype(stored)
    assert not state["self_key_0"].any()
    assert (state["ancestry"] == MASKED).all()
