"""Parameters that wait in the memory of the host for the layers that read them.

A stack of parameters is on the host where only loops over layers and its update read it. Each loop
brings the slice of an iteration to the device before the first operation that reads it,

    forward:   w = from_host(p[i]);  h' = tanh(h @ w)
    backward:  w = from_host(p[i]);  dh' = dh @ w.T

and the update, which `host_states` writes, brings it once more and sends the next value.
"""

from __future__ import annotations

from collections.abc import Iterator

from ir import FROM_HOST

from .draft import Draft, Item
from .update_loop import host_copy


def fetching(draft: Draft, v: int) -> list[Item]:
    """The nodes that read a value by slices only: loops over them, and what these loops are in."""
    return [item for item in draft.items if v in item.ins and _slices_only(draft, item, v)]


def fetch_slices(draft: Draft, item: Item, v: int) -> None:
    """Brings the slices that a node of `fetching` reads of a value from the host, one by one."""
    body = draft.body(item)
    for inner, sliced in _entered(draft, item, v):
        if sliced:
            _fetch(body, inner, backward=item.backward)
            continue
        for one in fetching(body, inner):
            fetch_slices(body, one, inner)


def _entered(draft: Draft, item: Item, v: int) -> Iterator[tuple[int, bool]]:
    """What a value is inside a node, and whether that is a slice of it."""
    body = draft.body(item)
    wiring = item.wiring() if item.op == "scan" else None
    for k, x in enumerate(item.ins):
        if x == v:
            sliced = wiring is not None and k >= wiring.constants + wiring.carries
            yield body.entered[k], sliced


def _slices_only(draft: Draft, item: Item, v: int) -> bool:
    """Whether a node reads a value only as what its loops take slices of."""
    if item.op not in ("remat", "scan"):
        return False
    carried = item.wiring().operands(item.ins)[1] if item.op == "scan" else ()
    if v in carried:
        return False
    body = draft.body(item)
    for inner, sliced in _entered(draft, item, v):
        if sliced:
            continue
        readers = [one for one in body.items if inner in one.ins]
        if inner in body.outputs or not all(_slices_only(body, one, inner) for one in readers):
            return False
    return True


def _fetch(body: Draft, v: int, *, backward: bool) -> None:
    """Brings a slice to the device before the first operation of its loop that reads it."""
    at = next((i for i, one in enumerate(body.items) if v in one.ins), len(body.items))
    like = body.items[at] if at < len(body.items) else None
    copy = host_copy(body.numbers, FROM_HOST, v, like, backward=backward)
    arrived = copy.outs[0]
    for one in body.items:
        one.ins = [arrived if x == v else x for x in one.ins]
    body.outputs = [arrived if x == v else x for x in body.outputs]
    body.items.insert(at, copy)
