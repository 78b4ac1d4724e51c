"""The permutes of products that run in parts beside a gather or reduce-scatter of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from ir import Reshard, parts_of

from ..lower import Decided

PERMUTE = "collective-permute"


@dataclass(frozen=True, slots=True)
class BesideProduct:
    """A reshard in parts beside its product, all runs together.

    axes: of its permutes; count: of these; sent_bytes: of a device.
    seconds: of all permutes, and by which the parts take longer than the product.
    hidden_s: seconds that are hidden, interference taken off.
    held_bytes: of parts on their way.
    """

    axes: tuple[str, ...]
    count: float
    sent_bytes: float
    seconds: float
    hidden_s: float
    held_bytes: int


def beside_product(decided: Decided, moved: Reshard) -> BesideProduct | None:
    """The permutes of a reshard; None if it does not run in parts."""
    if not moved.in_parts:
        return None
    builder, built, passage = decided.builder, decided.built, moved.passage
    i = decided.plan.product_of(moved)
    op, node = builder.flat.ops[i], built.op_node[i]
    ref, k = built.refs[node], decided.choice[node]
    parts = parts_of(builder.spec(op), passage.site.position, ref.menu[k], moved.change)
    assert parts is not None, "lowered in parts"
    assert builder.products is not None, "lowered in parts"
    found = builder.products.prices(op, ref, [(k, parts)])
    each = found.count, found.sent_bytes, found.seconds, found.hidden_s
    count, sent, seconds, hidden_s = (float(x[0]) * moved.weight for x in each)
    return BesideProduct(parts.axes, count, sent, seconds, hidden_s, int(found.held_bytes[0]))
