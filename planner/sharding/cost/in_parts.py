"""Collectives of a plan in parts beside products: permutes, and exchanges in chunks."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel import wire_bytes
from ir import Reshard, parts_of

from ..lower import Decided
from ..problem.in_chunks import exchange_step

PERMUTE = "collective-permute"


@dataclass(frozen=True, slots=True)
class BesideProduct:
    """A reshard in parts beside its product, all runs together.

    kind: of its collectives; axes: of these; count: how many; sent_bytes: of a device.
    seconds: of all of them, and by which the parts take longer than the product.
    hidden_s: seconds that are hidden, interference taken off.
    held_bytes: of parts on their way.
    words: what it is, for its cause.
    """

    kind: str
    axes: tuple[str, ...]
    count: float
    sent_bytes: float
    seconds: float
    hidden_s: float
    held_bytes: int
    words: str


def beside_product(decided: Decided, moved: Reshard) -> BesideProduct | None:
    """The collectives of a reshard; None if it runs as a whole, beside no product of its own."""
    if moved.chunks > 1:
        return _chunks(decided, moved)
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
    return BesideProduct(
        PERMUTE, parts.axes, count, sent, seconds, hidden_s, int(found.held_bytes[0]),
        "beside its product",
    )  # fmt: skip


def _chunks(decided: Decided, moved: Reshard) -> BesideProduct:
    builder, built, change = decided.builder, decided.built, moved.change
    assert builder.exchanges is not None, "lowered in chunks"
    assert built.beside_s is not None, "lowered in chunks"
    number, mesh = built.outline.passage_numbers[moved.passage], decided.plan.mesh
    kind = int(builder.exchanges.kind[number])
    found = exchange_step(
        builder.exchanges.kinds[kind], change.type, change.before, change.after, mesh
    )
    assert found is not None, "lowered in chunks"
    dim, step = found
    price = builder.exchanges.prices(kind, change.type, dim, step)[moved.chunks]
    hidden_s = float(price.hidden_s(float(built.beside_s[number]))[0])
    seconds = moved.chunks * float(price.chunk_s[0]) + float(price.slower_s[0])
    local = [state.local_bytes(change.type, mesh) for state in (change.before, change.after)]
    sent = wire_bytes("all-to-all", mesh.product(step.axes), float(local[0]))
    return BesideProduct(
        "all-to-all", step.axes, moved.chunks * moved.weight, sent * moved.weight,
        seconds * moved.weight, hidden_s * moved.weight, sum(local),
        f"in {moved.chunks} chunks beside products",
    )  # fmt: skip
