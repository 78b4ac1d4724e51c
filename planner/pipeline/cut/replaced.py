# pyright: basic
"""A stage with its gradients as a traced program, and with a rewritten program in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ir import IRError
from ir.analysis import offloads
from ir.evaluate import plain_program
from ir.ordered_attention import traced_again
from ir.trace import Traced, trace

from .forward_backward import values_after
from .stage_gradient import Joint


def traced_joint(joint: Joint) -> Traced:
    """Traces one micro-batch of a stage: results, outgoing gradients, accumulated gradients."""
    return trace(joint.run, *joint.structs.values(), offload=joint.offload)


def late_inputs(joint: Joint, traced: Traced) -> range:
    """Inputs of `traced_joint` that are there only when the backward pass begins."""
    count = len(traced.graph.inputs)
    return range(count - len(joint.structs["slopes"]) - len(joint.structs["sums"]), count)


def with_program(joint: Joint, after: Traced) -> Joint:
    """The stage with a rewritten program of the same arguments and results.

    Args:
        joint: the stage.
        after: `traced_joint` of the stage, rewritten.

    Raises:
        IRError: if a result depends on later inputs than before: results of the stage must not read
            incoming gradients, outgoing gradients must not read accumulated ones.
    """
    graph, at = after.graph, len(after.program.consts)
    start: dict[str, int] = {}
    for name, values in joint.structs.items():
        start[name], at = at, at + len(values)
    gives, sends = len(joint.gives), len(joint.outgoing)
    given, sent = graph.outputs[:gives], graph.outputs[gives : gives + sends]
    for late, results in (("slopes", given), ("sums", (*given, *sent))):
        span = range(start[late], start[late] + len(joint.structs[late]))
        waiting = values_after(graph, span)
        if any(o in waiting for o in results):
            raise IRError(f"a result of the rewritten stage waits for its {late}")
    run_flat = plain_program(traced_again(after.program))

    def run(*kinds: Any) -> Any:
        flat = [x for values in kinds for x in values]
        found = run_flat(*after.program.consts, *flat)
        a, b = gives, gives + sends
        return list(found[:a]), list(found[a:b]), list(found[b:])

    return replace(joint, run=run, offload=offloads(graph))
