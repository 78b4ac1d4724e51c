"""Parallelism derived from plain ops, and collectives moved and merged.

Axis 1 is the row, sample or position, axis 2 the channel; of a weight, 1 is the output. A gather
of shards is `combine`, a sum over devices `reduce`, copies `replicate`.
"""

from __future__ import annotations

from ..worth import BOUNDED, EXACT, REASSOCIATED, Worth
from .row import Row

_BATCH = (("x", 3), ("y", 3))
_TABLE = (("i", 1),)


def _row(
    name: str,
    left: str,
    right: str,
    ranks: tuple[tuple[str, int], ...] = (),
    *,
    generic: bool = False,
    worth: Worth | None = None,
) -> Row:
    return Row(name, left, right, ranks, parallel=True, generic=generic, worth=worth)


DERIVED = (
    _row(
        "data-parallel",
        "linear(x, w)",
        "combine[1, k](linear(partition[1, k](x), replicate[k](w)))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    _row(
        "column-parallel",
        "linear(x, w)",
        "combine[2, k](linear(replicate[k](x), partition[1, k](w)))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    _row(
        "row-parallel",
        "linear(x, w)",
        "reduce[k](linear(partition[2, k](x), partition[2, k](w)))",
        worth=Worth(REASSOCIATED, EXACT, sums=3, ops=1),
    ),
    _row(
        "column-then-row-parallel",
        "linear(relu(linear(x, w)), v)",
        "reduce[k](linear(relu(linear(replicate[k](x), partition[1, k](w))), partition[2, k](v)))",
        worth=Worth(REASSOCIATED, EXACT, sums=5, ops=1),
    ),
    _row(
        "sharded-weight",
        "linear(x, w)",
        "linear(x, combine[1, k](partition[1, k](w)))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "head-or-expert-parallel",
        "batch-matmul(x, y)",
        "combine[1, k](batch-matmul(partition[1, k](x), partition[1, k](y)))",
        _BATCH,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    _row(
        "attention-heads-parallel",
        "batch-matmul(exp(batch-matmul(x, y)), z)",
        "combine[1, k](batch-matmul(exp(batch-matmul(partition[1, k](x), partition[1, k](y))), "
        "partition[1, k](z)))",
        (*_BATCH, ("z", 3)),
        worth=Worth(REASSOCIATED, EXACT, keeps=True),
    ),
    _row(
        "sequence-parallel-relu",
        "relu(x)",
        "combine[a, k](relu(partition[a, k](x)))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "sequence-parallel-cast",
        "cast(x)",
        "combine[a, k](cast(partition[a, k](x)))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "sequence-parallel-add",
        "add(x, y)",
        "combine[a, k](add(partition[a, k](x), partition[a, k](y)))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "sequence-parallel-mul",
        "mul(x, y)",
        "combine[a, k](mul(partition[a, k](x), partition[a, k](y)))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "partial-sum",
        "sum[a](x)",
        "reduce[k](sum[a](partition[a, k](x)))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, sums=3),
    ),
    _row(
        "lookup-by-columns",
        "gather(x, i)",
        "combine[2, k](gather(partition[2, k](x), replicate[k](i)))",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "lookup-by-rows-asked",
        "gather(x, i)",
        "combine[1, k](gather(replicate[k](x), partition[1, k](i)))",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
)

COLLECTIVES = (
    _row(
        "all-reduce-as-scatter-and-gather",
        "replicate[k](reduce[k](x))",
        "replicate[k](combine[a, k](partition[a, k](reduce[k](x))))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "scatter-and-gather-as-all-reduce",
        "replicate[k](combine[a, k](partition[a, k](reduce[k](x))))",
        "replicate[k](reduce[k](x))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "no-round-trip",
        "combine[a, k](partition[a, k](x))",
        "x",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "no-gather-to-cut",
        "partition[a, k](combine[a, k](x))",
        "x",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "gather-after-relu",
        "relu(combine[a, k](x))",
        "combine[a, k](relu(x))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "gather-before-relu",
        "combine[a, k](relu(x))",
        "relu(combine[a, k](x))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "gather-after-exp",
        "exp(combine[a, k](x))",
        "combine[a, k](exp(x))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "gather-after-cast",
        "cast(combine[a, k](x))",
        "combine[a, k](cast(x))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "gather-after-add",
        "add(combine[a, k](x), combine[a, k](y))",
        "combine[a, k](add(x, y))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "gather-after-linear",
        "linear(combine[1, k](x), w)",
        "combine[1, k](linear(x, replicate[k](w)))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    _row(
        "merge-reductions",
        "add(reduce[k](x), reduce[k](y))",
        "reduce[k](add(x, y))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, sums=2, ops=2),
    ),
    _row(
        "delay-reduction-past-gain",
        "mul(reduce[k](x), y)",
        "reduce[k](mul(x, replicate[k](y)))",
        generic=True,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
    ),
    _row(
        "delay-reduction-past-concat",
        "concat[a](reduce[k](x), reduce[k](y))",
        "reduce[k](concat[a](x, y))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    _row(
        "reduce-then-cut",
        "partition[a, k](reduce[m](x))",
        "reduce[m](partition[a, k](x))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    _row(
        "copy-after-relu",
        "relu(replicate[k](x))",
        "replicate[k](relu(x))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    _row(
        "copy-after-add",
        "add(replicate[k](x), replicate[k](y))",
        "replicate[k](add(x, y))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
)
