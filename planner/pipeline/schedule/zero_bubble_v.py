"""ZB-V: zero bubble with the memory of 1F1B, two chunks on each device in the shape of a V."""

from __future__ import annotations

from .placement import v_shape
from .table import Schedule, Table, table_of
from .task import Kind

_Rows = list[tuple[int, int, int]]


def zero_bubble_v(stages: int, microbatches: int) -> Schedule:
    """Chunk d goes down the devices, chunk 2p - 1 - d comes back up.

    The first device holds the first chunk and the last, so that backward work begins there as
    soon as the first micro-batch has come back. With equal times of forward, input and weight
    gradient no device idles between its first task and its last; each keeps at most 2p chunks of
    activations, which is what p micro-batches of a stage of both chunks need.

    Device d, with `a` its chunk on the way down and `b` the one on the way up:

        2(p - d) - 1 times  forward a
        d times             forward b, forward a
        p - d times         forward b, both gradients of b
        until all are in    forward a, both gradients of a, forward b, both gradients of b
        d times             input gradients of a and b, for which others wait
        p - d times         input gradient of a, and an overdue weight gradient
        2d times            weight gradients that are left

    Source: Qi et al., Zero bubble pipeline parallelism, ICLR 2024, section 6.
    """
    tables = [_one_device(stages, microbatches, device) for device in range(stages)]
    return Schedule("zb-v", v_shape(stages), microbatches, tuple(tables))


class _Device:
    """Builds the tasks of one device and counts them; tasks already done are skipped."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches = microbatches
        self.rows: _Rows = []
        self.done: dict[tuple[Kind, int], int] = {}
        self.owed: list[tuple[int, int]] = []

    def do(self, kind: Kind, chunk: int) -> None:
        m = self.done.get((kind, chunk), 0)
        if m < self.microbatches:
            self.done[kind, chunk] = m + 1
            self.rows.append((kind, chunk, m))
            if kind is Kind.INPUT_GRADIENT:
                self.owed.append((chunk, m))

    def pay(self) -> None:
        """Appends the oldest waiting weight gradient."""
        if self.owed:
            chunk, m = self.owed.pop(0)
            self.rows.append((Kind.WEIGHT_GRADIENT, chunk, m))

    def back(self, chunk: int) -> None:
        """Appends both gradients."""
        self.do(Kind.INPUT_GRADIENT, chunk)
        self.pay()


def _one_device(stages: int, microbatches: int, device: int) -> Table:
    a, b = device, 2 * stages - 1 - device
    work = _Device(microbatches)
    for _ in range(2 * (stages - device) - 1):
        work.do(Kind.FORWARD, a)
    for _ in range(device):
        work.do(Kind.FORWARD, b)
        work.do(Kind.FORWARD, a)
    for _ in range(stages - device):
        work.do(Kind.FORWARD, b)
        work.back(b)
    for _ in range(microbatches - stages):
        work.do(Kind.FORWARD, a)
        work.back(a)
        work.do(Kind.FORWARD, b)
        work.back(b)
    for _ in range(device):
        work.do(Kind.INPUT_GRADIENT, a)
        work.do(Kind.INPUT_GRADIENT, b)
    for _ in range(stages - device):
        work.back(a)
    while work.owed:
        work.pay()
    return table_of(work.rows)
