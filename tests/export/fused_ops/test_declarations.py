"""The table of fused operators, and whatever must agree with it."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import pytest
from support.paths import ROOT

from translate_trt.export.contract import make_contract
from translate_trt.export.fused_ops import declarations, gpu
from translate_trt.export.fused_ops.declarations import OPERATORS, FusedOp
from translate_trt.export.fused_ops.fuse import RULES
from translate_trt.export.fused_ops.matching import FusedNode, check_declared
from translate_trt.export.search_step import Changes, Request, State
from translate_trt.runtime import kernels

BODIES = Path(declarations.__file__).parent / "bodies"


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/declare.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_operator_is_emitted_by_a_rule() -> None:
    rules = {rule.__name__ for _, rule in (*RULES, *gpu.RULES)}
    declared = {op.rule for op in OPERATORS.values()}
    assert declared == rules | {
        "StepGraph", "EncoderGraph", "AttentionPast", "SentenceShortlist", "DynamicInt8",
    }  # fmt: skip


def test_kernels_are_registered_for_the_declared_operators(search_kernels: str) -> None:
    path = str(kernels.library())
    ort.SessionOptions().register_custom_ops_library(path)
    names = getattr(ctypes.CDLL(path), "translate_trt_kernels_operators", None)
    if names is None:
        pytest.fail("the library is out of date: run scripts/build_kernels.sh")
    names.restype = ctypes.c_char_p
    registered = names().decode().split()
    compiled = [op for op in OPERATORS.values() if not op.gpu]
    expected = {op.name for op in compiled if op.portable or search_kernels != kernels.PORTABLE}
    assert len(registered) == len(set(registered))
    missing, unknown = expected - set(registered), set(registered) - expected
    assert not missing, f"declared in declarations.py, not registered in operators.cc: {missing}"
    assert not unknown, f"registered in operators.cc, not declared so in declarations.py: {unknown}"


def test_every_line_of_a_body_belongs_to_a_variant() -> None:
    included: set[str] = set()
    for path in BODIES.iterdir():
        text = path.read_text()
        included |= set(re.findall(r"^(?:\[.*\] )?include (\w+)$", text, re.MULTILINE))
    assert {path.stem for path in BODIES.iterdir()} == included | {
        op.body for op in OPERATORS.values() if op.body
    }
    tags = {tag for op in OPERATORS.values() for tag in op.tags}
    for path in BODIES.iterdir():
        for group in re.findall(r"^\[(.*?)\]", path.read_text(), re.MULTILINE):
            assert {tag.lstrip("!") for tag in group.split()} <= tags, path.name


def test_the_search_takes_the_request_and_the_state() -> None:
    contract = make_contract(1, 1, 1, 1)
    types = {spec.name: spec.dtype for spec in (*contract.request, *contract.state)}
    select = OPERATORS["SelectBeams"]
    state = [name for name in State._fields if name != "tokens"]
    names = [*Request._fields, *state, *Changes._fields]
    taken = list(select.inputs.items())[-len(names) :]
    assert taken == [(name, types[name]) for name in names]
    given = [("parents", "int64"), *((f"next_{name}", types[name]) for name in State._fields)]
    assert list(select.outputs.items()) == given


def fused(op: FusedOp, **changes: object) -> FusedNode:
    """A node as the operator declares it, but for changes."""
    fields = {
        "name": op.name,
        "inputs": [ir.val(name) for name in op.inputs],
        "outputs": [ir.val(name) for name in op.outputs],
        "attributes": dict.fromkeys(op.attributes, 1),
    }
    return FusedNode(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_node_that_departs_from_its_declaration_is_refused() -> None:
    op = OPERATORS["LinearAdd"]
    check_declared(fused(op), "linear")
    for changes, rule, message in (
        ({"name": "LinearSub"}, "linear", "LinearSub"),
        ({}, "embed", "LinearAdd"),
        ({"inputs": []}, "linear", "declared"),
        ({"outputs": [ir.val("y"), ir.val("z")]}, "linear", "outputs"),
        ({"attributes": {"end": 1}}, "linear", "attributes end"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(message)):
            check_declared(fused(op, **changes), rule)
