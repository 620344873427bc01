"""Run the passes of a target over a graph and report what each of them did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from translate_trt.export.passes.base import NO_BOUNDS, Outcome, Pass
from translate_trt.export.passes.bound import Bound
from translate_trt.export.passes.expectations import ModelShape
from translate_trt.runtime.errors import TranslateTrtError

# Near misses in the message about a missing match.
_REASONS = 5


@dataclass(frozen=True)
class Report:
    """Line of --explain: the effect of one pass on one graph.

    Attributes:
        graph: Name of the graph, "encoder" or "step".
        name: Name of the pass.
        summary: Summary of the pass.
        matches: Number of subgraphs rewritten; None if the pass was left out.
        expected: Number of matches in a model of this shape; None if it is not known.
        refused: Reasons why subgraphs that matched were left alone.
        nodes_before: Number of nodes before the pass.
        nodes_after: Number of nodes after the pass.
    """

    graph: str
    name: str
    summary: str
    matches: int | None
    expected: int | None
    refused: tuple[str, ...]
    nodes_before: int
    nodes_after: int


class Applied(NamedTuple):
    """Result of `run_passes`.

    Attributes:
        reports: One report per pass, in order.
        output_bounds: Bounds of the graph's outputs by name, if a pass computed them.
    """

    reports: list[Report]
    output_bounds: Mapping[str, Bound]


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass],
    disabled: Collection[str] = (),
    after: Callable[[str, ir.Model], None] | None = None,
    input_bounds: Mapping[str, Bound] = NO_BOUNDS,
    shapes: Sequence[ModelShape] = (),
) -> Applied:
    """Apply passes to a graph, in place and in order.

    Args:
        model: The graph.
        passes: Passes to apply.
        disabled: Names of passes to leave out.
        after: Called with each pass's name and the graph after that pass.
        input_bounds: Known bounds of the graph's inputs, by name.
        shapes: Shape of the model or of each member of an ensemble, from which passes know how many
            matches there are; none if it is not known. The numbers are not enforced if a pass is
            left out, since other passes may build on its rewrites.

    Raises:
        TranslateTrtError: A pass fails or has too few matches; the message names the pass and the
            graph.
    """
    graph = str(model.graph.name)
    reports = []
    output_bounds = NO_BOUNDS
    for one in passes:
        before = len(model.graph)
        if one.name in disabled:
            reports.append(Report(graph, one.name, one.summary, None, None, (), before, before))
            continue
        try:
            outcome = one.with_input_bounds(input_bounds).run(model)
        except TranslateTrtError:
            raise
        except Exception as error:  # a library's own message names neither the pass nor the graph
            raise TranslateTrtError(
                f"the pass {one.name} failed on the {graph} graph: {error}. "
                f"Leave it out with --disable-pass {one.name}, and please report it."
            ) from error
        output_bounds = outcome.output_bounds or output_bounds
        expected = None
        if shapes and one.expected is not None:
            expected = one.expected.of(graph, shapes)
        reports.append(Report(
            graph, one.name, one.summary, outcome.matches, expected, outcome.refused, before,
            len(model.graph),
        ))  # fmt: skip
        if after is not None:
            after(one.name, model)
        found = outcome.matches + outcome.unavoidable
        if expected is not None and found < expected and not disabled:
            raise TranslateTrtError(_too_few(one, model, outcome, expected))
    return Applied(reports, output_bounds)


def _too_few(one: Pass, model: ir.Model, outcome: Outcome, expected: int) -> str:
    """Compose the message about a pass with too few matches."""
    reasons = [*outcome.refused, *one.near_misses(model)]
    shown = "".join(f"\n  {reason}" for reason in reasons[:_REASONS]) or " nothing."
    remedy = (
        "Choose a target of another precision"
        if one.required
        else f"Export without it by --disable-pass {one.name}"
    )
    return (
        f"the pass {one.name} has {outcome.matches} matches in the {model.graph.name} graph "
        f"instead of {expected}: PyTorch or an earlier pass wrote something that it does not "
        f"recognize. "
        f"{remedy}, and please report it with the versions of torch and onnxscript. "
        f"What came closest:{shown}"
    )
