"""Products that the backward pass computes again: their seconds, and what keeping them takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..common.units_text import bytes_text, seconds_text
from ..sharding.lower import Decided
from .products import computed_again


@dataclass(frozen=True, slots=True)
class Again:
    """A product that is computed again, all of its runs in one call.

    nbytes: of the results of all runs on one device, which it would hold if they were kept.
    """

    op: str
    count: float
    seconds: float
    nbytes: float
    source: str


def products_again(decided: Decided, *, chosen: bool) -> Iterator[Again]:
    """The products that a plan computes again, in program order.

    Args:
        decided: the plan.
        chosen: whether it chose what is computed again, or the program as written did.
    """
    flat, plan, built = decided.builder.flat, decided.plan, decided.built
    for i in sorted(computed_again(flat, chosen=chosen)):
        op, strategy = flat.ops[i], plan.strategies[i]
        assert strategy is not None
        node = built.op_node[i]
        seconds = float(built.work[node][decided.choice[node]])
        sizes = (
            state.local_bytes(type_, plan.mesh)
            for type_, state in zip(op.node.outputs, strategy.results, strict=True)
        )
        yield Again(op.node.op, op.weight, seconds, op.weight * sum(sizes), op.node.source)


def lines_of(again: tuple[Again, ...]) -> list[str]:
    """Text: the seconds and bytes of all of them, then each source line."""
    if not again:
        return []
    spent, size = sum(one.seconds for one in again), sum(one.nbytes for one in again)
    rows: dict[tuple[str, str], list[float]] = {}
    for one in again:
        row = rows.setdefault((one.op, one.source), [0.0, 0.0, 0.0])
        row[:] = row[0] + one.seconds, row[1] + one.nbytes, row[2] + one.count
    return [
        f"products computed again in the backward pass take {seconds_text(spent)}; keeping their "
        f"results would take {bytes_text(size)} more",
        *(
            f"  {seconds_text(seconds):>8}  {op}, {count:.0f} x, {bytes_text(nbytes)}"
            f"{f', {source}' if source else ''}"
            for (op, source), (seconds, nbytes, count) in rows.items()
        ),
    ]
