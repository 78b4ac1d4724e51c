"""Casts, layouts, reductions and lookups on one device.

s is a scalar, i and j are row numbers.
"""

from __future__ import annotations

from ..worth import BOUNDED, EXACT, REASSOCIATED, Worth
from .row import Row

_TABLE = (("i", 1), ("j", 1))

CASTS = (
    Row(
        "cast-before-transpose",
        "cast(transpose(x))",
        "transpose(cast(x))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "cast-after-transpose",
        "transpose(cast(x))",
        "cast(transpose(x))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "cast-parts",
        "cast(concat[a](x, y))",
        "concat[a](cast(x), cast(y))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "cast-whole",
        "concat[a](cast(x), cast(y))",
        "cast(concat[a](x, y))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "cast-rows",
        "cast(gather(x, i))",
        "gather(cast(x), i)",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
        searched=True,
    ),
    Row(
        "cast-less-rows",
        "gather(cast(x), i)",
        "cast(gather(x, i))",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
        searched=True,
    ),
    Row(
        "cast-before-expand",
        "cast(expand[a](u, x))",
        "expand[a](cast(u), x)",
        (("u", 1),),
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
)

LAYOUTS = (
    Row(
        "transpose-twice",
        "transpose(transpose(x))",
        "x",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "transpose-after-add",
        "add(transpose(x), transpose(y))",
        "transpose(add(x, y))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "transpose-after-mul",
        "mul(transpose(x), transpose(y))",
        "transpose(mul(x, y))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "transpose-after-relu",
        "relu(transpose(x))",
        "transpose(relu(x))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "transpose-after-exp",
        "exp(transpose(x))",
        "transpose(exp(x))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "transpose-after-scale",
        "scale(transpose(x), s)",
        "transpose(scale(x, s))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "sum-of-transpose",
        "sum[1](transpose(x))",
        "sum[0](x)",
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
    ),
    Row(
        "max-of-transpose",
        "max[1](transpose(x))",
        "max[0](x)",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "concat-of-transposes",
        "concat[1](transpose(x), transpose(y))",
        "transpose(concat[0](x, y))",
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "relu-whole",
        "concat[a](relu(x), relu(y))",
        "relu(concat[a](x, y))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "add-whole",
        "concat[a](add(x, y), add(z, u))",
        "add(concat[a](x, z), concat[a](y, u))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "concat-geometry",
        "concat[a](concat[b](x, y), concat[b](z, u))",
        "concat[b](concat[a](x, z), concat[a](y, u))",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
    Row(
        "split-of-concat",
        "split[a](concat[a](x, y)).0; split[a](concat[a](x, y)).1",
        "x; y",
        generic=True,
        worth=Worth(EXACT, EXACT, keeps=True),
    ),
)

REDUCTIONS = (
    Row(
        "sum-of-add",
        "sum[a](add(x, y))",
        "add(sum[a](x), sum[a](y))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, sums=2, ops=2),
    ),
    Row(
        "add-of-sums",
        "add(sum[a](x), sum[a](y))",
        "sum[a](add(x, y))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, sums=2, ops=2),
        searched=True,
    ),
    Row(
        "sum-of-concat",
        "sum[a](concat[a](x, y))",
        "add(sum[a](x), sum[a](y))",
        generic=True,
        worth=Worth(REASSOCIATED, EXACT, sums=2, ops=1),
        searched=True,
    ),
    Row(
        "sum-of-neg",
        "sum[a](neg(x))",
        "neg(sum[a](x))",
        generic=True,
        worth=Worth(BOUNDED, EXACT, sums=2),
    ),
    Row(
        "factor-out-of-sum",
        "sum[a](mul(x, expand[a](u, x)))",
        "mul(sum[a](x), u)",
        (("u", 1),),
        generic=True,
        worth=Worth(BOUNDED, EXACT, sums=2, ops=2),
        searched=True,
    ),
)

LOOKUPS = (
    Row(
        "merge-lookups",
        "gather(x, i); gather(x, j)",
        "split[0](gather(x, concat[0](i, j))).0; split[0](gather(x, concat[0](i, j))).1",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
        searched=True,
    ),
    Row(
        "lookup-after-product",
        "matmul(gather(x, i), w)",
        "gather(matmul(x, w), i)",
        _TABLE,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "lookup-before-product",
        "gather(matmul(x, w), i)",
        "matmul(gather(x, i), w)",
        _TABLE,
        worth=Worth(REASSOCIATED, EXACT, keeps=True, sums=2),
        searched=True,
    ),
    Row(
        "lookup-after-relu",
        "relu(gather(x, i))",
        "gather(relu(x), i)",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
        searched=True,
    ),
    Row(
        "lookup-of-columns",
        "gather(concat[1](x, y), i)",
        "concat[1](gather(x, i), gather(y, i))",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
        searched=True,
    ),
    Row(
        "merge-tables",
        "concat[1](gather(x, i), gather(y, i))",
        "gather(concat[1](x, y), i)",
        _TABLE,
        worth=Worth(EXACT, EXACT, keeps=True),
        searched=True,
    ),
)
