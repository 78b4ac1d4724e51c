"""Sides of rules on the arrays that logical devices hold, with NumPy.

An independent second meaning: `compute` of an op shares no code with its `value`, which proofs
read. A device computes of its own arrays alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Op, Side
from ..numeric.arrays import TooLargeError, need
from ..numeric.devices import Run, Tensor, spread
from ..ops import OPS

MOST_ELEMENTS = 1_000_000  # of one value


def evaluate(
    side: Side, inputs: Mapping[str, Tensor], run: Run, shapes: Mapping[int, tuple[int, ...]]
) -> list[tuple[Tensor, ...]]:
    """Outputs of every op of a side.

    Args:
        side: the ops.
        inputs: by name.
        run: arithmetic.
        shapes: of constants (identity matrices and the like), by op.

    Raises:
        NotTypedError: if shapes or degrees do not fit.
    """
    made: list[tuple[Tensor, ...]] = []
    for i, op in enumerate(side):
        args = [inputs[r.name] if r.op < 0 else made[r.op][r.output] for r in op.inputs]
        run.spend(sum(x.data.size for x in args))
        made.append(apply(op, args, run, shapes.get(i)))
        run.spend(sum(t.data.size for t in made[-1]))
        if any(t.data.size > MOST_ELEMENTS for t in made[-1]):
            raise TooLargeError(f"a {op.kind} is too large")
    return made


def apply(
    op: Op, args: Sequence[Tensor], run: Run, shape: tuple[int, ...] | None = None
) -> tuple[Tensor, ...]:
    """The outputs of one op; `shape` is that of a constant.

    Raises:
        NotTypedError: if shapes or degrees do not fit.
    """
    record = OPS[op.kind]
    if record.compute is not None:
        return record.compute(op, args, run)
    assert record.fill is not None
    need(shape is not None, "a constant whose size is not known")
    data = record.fill(op, shape or (), run.numbers)
    return (spread(data[None], (1,) * (data.ndim + 1), (None,) * (data.ndim + 1)),)
