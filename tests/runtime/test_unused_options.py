"""Options that no sentence of a batch has add nothing to the inputs of a step (rules 13 to 15)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.backends.onnxruntime import OnnxRuntimeGraphs
from translate_trt.runtime.reference import Arrays

#: Axes that only exist for an option: marked tokens, samples, tokens of constraints.
AXES = {"B", "R", "D", "U"}


@pytest.mark.usefixtures("python_loop")
def test_inputs_of_unused_options_have_no_columns(
    looping_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(looping_bundle, threads=1)
    sizes: dict[str, set[int]] = {}
    run = OnnxRuntimeGraphs.step

    def step(graphs: OnnxRuntimeGraphs, inputs: Arrays) -> Arrays:
        for spec in translator.target.contract.step_inputs:
            for axis, size in zip(spec.axes, inputs[spec.name].shape, strict=True):
                if axis in AXES:
                    sizes.setdefault(str(axis), set()).add(size)
        return run(graphs, inputs)

    monkeypatch.setattr(OnnxRuntimeGraphs, "step", step)
    plain = SearchOptions(max_length=9)
    for beam_size in (1, 4):
        others = dataclasses.replace(
            plain, beam_size=beam_size, num_hypotheses=beam_size, early_stopping=True,
            min_length=3, loop_guard=True, return_attention=True,
        )  # fmt: skip
        for options in (dataclasses.replace(plain, beam_size=beam_size), others):
            translator.translate(["a cat", "the dog runs"], options)
    translator.translate("a cat", dataclasses.replace(plain, alternatives=2), "the")
    translator.score("a cat", "the dog")
    assert sizes == {axis: {0} for axis in AXES}

    sizes.clear()
    translator.translate("a cat", dataclasses.replace(plain, disable_unk=True))
    assert sizes == {"B": {1}, "R": {0}, "D": {0}, "U": {0}}
