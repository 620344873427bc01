"""Run the passes of a target over a graph and report what each of them did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from translate_trt.export.passes.base import NO_BOUNDS, Pass
from translate_trt.export.passes.value_bounds import Bound
from translate_trt.runtime.errors import TranslateTrtError


@dataclass(frozen=True)
class Report:
    """One line of --explain.

    Attributes:
        graph: "encoder" or "step".
        name: of the pass.
        summary: what it does.
        matches: places rewritten; None: the pass was switched off.
        refused: why places that looked right were left alone.
        nodes_before: of the graph.
        nodes_after: of the graph.
    """

    graph: str
    name: str
    summary: str
    matches: int | None
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
) -> Applied:
    """Apply passes to a graph, in place and in order.

    Args:
        model: The graph.
        passes: Passes to apply.
        disabled: Names of passes to leave out.
        after: Called with each pass's name and the graph after that pass.
        input_bounds: Known bounds of the graph's inputs, by name.

    Raises:
        TranslateTrtError: A pass fails; the message names the pass and the graph.
    """
    graph = str(model.graph.name)
    reports = []
    output_bounds = NO_BOUNDS
    for one in passes:
        before = len(model.graph)
        if one.name in disabled:
            reports.append(Report(graph, one.name, one.summary, None, (), before, before))
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
        reports.append(
            Report(
                graph,
                one.name,
                one.summary,
                outcome.matches,
                outcome.refused,
                before,
                len(model.graph),
            )
        )
        if after is not None:
            after(one.name, model)
    return Applied(reports, output_bounds)
