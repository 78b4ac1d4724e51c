"""Which ops of a program padding may change, whatever its plan."""

from __future__ import annotations

from ir import Literal
from ir.analysis import Place

from .bordered import Borders
from .candidates import classes_of, padded_size, products
from .classified import Classified


def places_to_pad(known: Classified, devices: int) -> frozenset[Place]:
    """Places of the ops with a dimension that may be padded: of products, or of a group.

    Args:
        known: the program.
        devices: number of devices.
    """
    of_products = {c for _, names in products(known) for c in names}
    odd = {one.number for one in classes_of(known) if padded_size(one.size, devices)}
    wanted = odd & of_products
    for group in Borders(known).groups(devices):
        wanted |= group.growth.keys()
    flat = known.flat
    return frozenset(
        op.place for op in flat.ops
        if any(
            known.classes.of_dim(v, d) in wanted
            for v in (*op.inputs, *op.outputs) if not isinstance(v, Literal)
            for d in range(flat.values[v].type.rank)
        )
    )  # fmt: skip
