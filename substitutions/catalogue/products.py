"""Products of matrices, scales and convolutions on one device.

s is a scalar, g and r are vectors.
"""

from __future__ import annotations

from ..worth import BOUNDED, EXACT, REASSOCIATED, Worth
from .row import Row

_VECTOR = (("g", 1), ("r", 1))
_IMAGE = (("x", 4), ("y", 4), ("w", 4), ("v", 4), ("g", 1))
_BATCH = (("x", 3), ("y", 3), ("z", 3), ("w", 3), ("v", 3))

PRODUCTS = (
    Row(
        "merge-projections",
        "matmul(x, w); matmul(x, v)",
        "split[1](matmul(x, concat[1](w, v))).0; split[1](matmul(x, concat[1](w, v))).1",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "merge-three-projections",
        "matmul(x, w); matmul(x, v); matmul(x, u)",
        "split[1](split[1](matmul(x, concat[1](concat[1](w, v), u))).0).0; "
        "split[1](split[1](matmul(x, concat[1](concat[1](w, v), u))).0).1; "
        "split[1](matmul(x, concat[1](concat[1](w, v), u))).1",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "merge-batch-projections",
        "batch-matmul(x, w); batch-matmul(x, v)",
        "split[2](batch-matmul(x, concat[2](w, v))).0; "
        "split[2](batch-matmul(x, concat[2](w, v))).1",
        _BATCH,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "merge-gate-and-up",
        "mul(relu(matmul(x, w)), matmul(x, v))",
        "mul(relu(split[1](matmul(x, concat[1](w, v))).0), split[1](matmul(x, concat[1](w, v))).1)",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "split-projection",
        "matmul(x, concat[1](w, v))",
        "concat[1](matmul(x, w), matmul(x, v))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "merge-rows",
        "matmul(x, w); matmul(y, w)",
        "split[0](matmul(concat[0](x, y), w)).0; split[0](matmul(concat[0](x, y), w)).1",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    Row(
        "reassociate-right",
        "matmul(matmul(x, y), z)",
        "matmul(x, matmul(y, z))",
        worth=Worth(BOUNDED, EXACT, sums=4),
        searched=True,
    ),
    Row(
        "reassociate-left",
        "matmul(x, matmul(y, z))",
        "matmul(matmul(x, y), z)",
        worth=Worth(BOUNDED, EXACT, sums=4),
        searched=True,
    ),
    Row(
        "reassociate-batch",
        "batch-matmul(batch-matmul(x, y), z)",
        "batch-matmul(x, batch-matmul(y, z))",
        _BATCH,
        worth=Worth(BOUNDED, EXACT, sums=4),
        searched=True,
    ),
    Row(
        "reassociate-batch-left",
        "batch-matmul(x, batch-matmul(y, z))",
        "batch-matmul(batch-matmul(x, y), z)",
        _BATCH,
        worth=Worth(BOUNDED, EXACT, sums=4),
        searched=True,
    ),
    Row(
        "factor-weight",
        "add(matmul(x, w), matmul(x, v))",
        "matmul(x, add(w, v))",
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "factor-input",
        "add(matmul(x, w), matmul(y, w))",
        "matmul(add(x, y), w)",
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "expand-weight",
        "matmul(x, add(w, v))",
        "add(matmul(x, w), matmul(x, v))",
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "fold-low-rank",
        "add(matmul(x, w), matmul(matmul(x, u), v))",
        "matmul(x, add(w, matmul(u, v)))",
        worth=Worth(BOUNDED, EXACT, sums=4, ops=2),
        searched=True,
    ),
    Row(
        "unfold-low-rank",
        "matmul(x, add(w, matmul(u, v)))",
        "add(matmul(x, w), matmul(matmul(x, u), v))",
        worth=Worth(BOUNDED, EXACT, sums=4, ops=2),
        searched=True,
    ),
    Row(
        "split-k",
        "matmul(concat[1](x, y), concat[0](w, v))",
        "add(matmul(x, w), matmul(y, v))",
        worth=Worth(REASSOCIATED, EXACT, sums=2, ops=1),
        searched=True,
    ),
    Row(
        "merge-k",
        "add(matmul(x, w), matmul(y, v))",
        "matmul(concat[1](x, y), concat[0](w, v))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=1),
        searched=True,
    ),
    Row(
        "merge-batch-k",
        "add(batch-matmul(x, w), batch-matmul(y, v))",
        "batch-matmul(concat[2](x, y), concat[1](w, v))",
        _BATCH,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=1),
        searched=True,
    ),
    Row(
        "transpose-product",
        "transpose(matmul(x, y))",
        "matmul(transpose(y), transpose(x))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    Row(
        "product-of-transposes",
        "matmul(transpose(y), transpose(x))",
        "transpose(matmul(x, y))",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
)

SCALES = (
    Row(
        "scale-after-product",
        "matmul(scale(x, s), w)",
        "scale(matmul(x, w), s)",
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "scale-into-weight",
        "scale(matmul(x, w), s)",
        "matmul(x, scale(w, s))",
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "merge-scale-of-sum",
        "add(scale(x, s), scale(y, s))",
        "scale(add(x, y), s)",
        worth=Worth(BOUNDED, EXACT, ops=4),
    ),
    Row(
        "scale-after-sum",
        "sum[a](scale(x, s))",
        "scale(sum[a](x), s)",
        generic=True,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
    ),
    Row(
        "scale-after-batch",
        "batch-matmul(scale(x, s), y)",
        "scale(batch-matmul(x, y), s)",
        _BATCH,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "column-gain-into-weight",
        "mul(matmul(x, w), along[1](g, matmul(x, w)))",
        "matmul(x, mul(w, along[1](g, w)))",
        _VECTOR,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "norm-gain-into-weight",
        "matmul(mul(x, along[1](g, x)), w)",
        "matmul(x, mul(w, along[0](g, w)))",
        _VECTOR,
        worth=Worth(REASSOCIATED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "row-norm-after-product",
        "matmul(mul(x, along[0](r, x)), w)",
        "mul(matmul(x, w), along[0](r, matmul(x, w)))",
        _VECTOR,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "batch-norm-into-convolution",
        "mul(conv(x, w), along[1](g, conv(x, w)))",
        "conv(x, mul(w, along[0](g, w)))",
        _IMAGE,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "scale-into-convolution",
        "scale(conv(x, w), s)",
        "conv(x, scale(w, s))",
        _IMAGE,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "merge-convolutions",
        "conv(x, w); conv(x, v)",
        "split[1](conv(x, concat[0](w, v))).0; split[1](conv(x, concat[0](w, v))).1",
        _IMAGE,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "merge-convolution-inputs",
        "add(conv(x, w), conv(y, v))",
        "conv(concat[1](x, y), concat[1](w, v))",
        _IMAGE,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=1),
        searched=True,
    ),
    Row(
        "factor-convolution",
        "add(conv(x, w), conv(x, v))",
        "conv(x, add(w, v))",
        _IMAGE,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
)
