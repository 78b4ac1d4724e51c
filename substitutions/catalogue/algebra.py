"""Products, scales, casts, layouts, reductions and lookups on one device.

s and t are scalars, g and r vectors, i and j row numbers.
"""

from __future__ import annotations

from .row import Row

_TABLE = (("i", 1), ("j", 1))
_VECTOR = (("g", 1), ("r", 1))
_IMAGE = (("x", 4), ("y", 4), ("w", 4), ("v", 4), ("g", 1))
_BATCH = (("x", 3), ("y", 3), ("z", 3), ("w", 3), ("v", 3))

PRODUCTS = (
    Row(
        "merge-projections",
        "matmul(x, w); matmul(x, v)",
        "split[1](matmul(x, concat[1](w, v))).0; split[1](matmul(x, concat[1](w, v))).1",
    ),
    Row(
        "merge-three-projections",
        "matmul(x, w); matmul(x, v); matmul(x, u)",
        "split[1](split[1](matmul(x, concat[1](concat[1](w, v), u))).0).0; "
        "split[1](split[1](matmul(x, concat[1](concat[1](w, v), u))).0).1; "
        "split[1](matmul(x, concat[1](concat[1](w, v), u))).1",
    ),
    Row(
        "merge-gate-and-up",
        "mul(relu(matmul(x, w)), matmul(x, v))",
        "mul(relu(split[1](matmul(x, concat[1](w, v))).0), split[1](matmul(x, concat[1](w, v))).1)",
    ),
    Row(
        "split-projection",
        "matmul(x, concat[1](w, v))",
        "concat[1](matmul(x, w), matmul(x, v))",
    ),
    Row(
        "merge-rows",
        "matmul(x, w); matmul(y, w)",
        "split[0](matmul(concat[0](x, y), w)).0; split[0](matmul(concat[0](x, y), w)).1",
    ),
    Row("reassociate-right", "matmul(matmul(x, y), z)", "matmul(x, matmul(y, z))"),
    Row("reassociate-left", "matmul(x, matmul(y, z))", "matmul(matmul(x, y), z)"),
    Row("factor-weight", "add(matmul(x, w), matmul(x, v))", "matmul(x, add(w, v))"),
    Row("factor-input", "add(matmul(x, w), matmul(y, w))", "matmul(add(x, y), w)"),
    Row("expand-weight", "matmul(x, add(w, v))", "add(matmul(x, w), matmul(x, v))"),
    Row(
        "fold-low-rank",
        "add(matmul(x, w), matmul(matmul(x, u), v))",
        "matmul(x, add(w, matmul(u, v)))",
    ),
    Row(
        "unfold-low-rank",
        "matmul(x, add(w, matmul(u, v)))",
        "add(matmul(x, w), matmul(matmul(x, u), v))",
    ),
    Row(
        "split-k",
        "matmul(concat[1](x, y), concat[0](w, v))",
        "add(matmul(x, w), matmul(y, v))",
    ),
    Row("merge-k", "add(matmul(x, w), matmul(y, v))", "matmul(concat[1](x, y), concat[0](w, v))"),
    Row("transpose-product", "transpose(matmul(x, y))", "matmul(transpose(y), transpose(x))"),
    Row("product-of-transposes", "matmul(transpose(y), transpose(x))", "transpose(matmul(x, y))"),
    Row(
        "reassociate-batch",
        "batch-matmul(batch-matmul(x, y), z)",
        "batch-matmul(x, batch-matmul(y, z))",
        _BATCH,
    ),
    Row(
        "reassociate-batch-left",
        "batch-matmul(x, batch-matmul(y, z))",
        "batch-matmul(batch-matmul(x, y), z)",
        _BATCH,
    ),
    Row(
        "merge-batch-projections",
        "batch-matmul(x, w); batch-matmul(x, v)",
        "split[2](batch-matmul(x, concat[2](w, v))).0; "
        "split[2](batch-matmul(x, concat[2](w, v))).1",
        _BATCH,
    ),
    Row(
        "merge-batch-k",
        "add(batch-matmul(x, w), batch-matmul(y, v))",
        "batch-matmul(concat[2](x, y), concat[1](w, v))",
        _BATCH,
    ),
)

SCALES = (
    Row("scale-after-product", "matmul(scale(x, s), w)", "scale(matmul(x, w), s)"),
    Row("scale-into-weight", "scale(matmul(x, w), s)", "matmul(x, scale(w, s))"),
    Row("merge-scale-of-sum", "add(scale(x, s), scale(y, s))", "scale(add(x, y), s)"),
    Row("scale-after-sum", "sum[a](scale(x, s))", "scale(sum[a](x), s)", generic=True),
    Row(
        "scale-after-batch", "batch-matmul(scale(x, s), y)", "scale(batch-matmul(x, y), s)", _BATCH
    ),
    Row(
        "column-gain-into-weight",
        "mul(matmul(x, w), along[1](g, matmul(x, w)))",
        "matmul(x, mul(w, along[1](g, w)))",
        _VECTOR,
    ),
    Row(
        "norm-gain-into-weight",
        "matmul(mul(x, along[1](g, x)), w)",
        "matmul(x, mul(w, along[0](g, w)))",
        _VECTOR,
    ),
    Row(
        "row-norm-after-product",
        "matmul(mul(x, along[0](r, x)), w)",
        "mul(matmul(x, w), along[0](r, matmul(x, w)))",
        _VECTOR,
    ),
    Row(
        "batch-norm-into-convolution",
        "mul(conv(x, w), along[1](g, conv(x, w)))",
        "conv(x, mul(w, along[0](g, w)))",
        _IMAGE,
    ),
    Row("scale-into-convolution", "scale(conv(x, w), s)", "conv(x, scale(w, s))", _IMAGE),
    Row(
        "merge-convolutions",
        "conv(x, w); conv(x, v)",
        "split[1](conv(x, concat[0](w, v))).0; split[1](conv(x, concat[0](w, v))).1",
        _IMAGE,
    ),
    Row(
        "merge-convolution-inputs",
        "add(conv(x, w), conv(y, v))",
        "conv(concat[1](x, y), concat[1](w, v))",
        _IMAGE,
    ),
    Row("factor-convolution", "add(conv(x, w), conv(x, v))", "conv(x, add(w, v))", _IMAGE),
)

CASTS = (
    Row("cast-before-transpose", "cast(transpose(x))", "transpose(cast(x))"),
    Row("cast-after-transpose", "transpose(cast(x))", "cast(transpose(x))"),
    Row("cast-parts", "cast(concat[a](x, y))", "concat[a](cast(x), cast(y))", generic=True),
    Row("cast-whole", "concat[a](cast(x), cast(y))", "cast(concat[a](x, y))", generic=True),
    Row("cast-rows", "cast(gather(x, i))", "gather(cast(x), i)", _TABLE),
    Row("cast-less-rows", "gather(cast(x), i)", "cast(gather(x, i))", _TABLE),
    Row(
        "cast-before-expand",
        "cast(expand[a](u, x))",
        "expand[a](cast(u), x)",
        (("u", 1),),
        generic=True,
    ),
)

LAYOUTS = (
    Row("transpose-twice", "transpose(transpose(x))", "x"),
    Row("transpose-after-add", "add(transpose(x), transpose(y))", "transpose(add(x, y))"),
    Row("transpose-after-mul", "mul(transpose(x), transpose(y))", "transpose(mul(x, y))"),
    Row("transpose-after-relu", "relu(transpose(x))", "transpose(relu(x))"),
    Row("transpose-after-exp", "exp(transpose(x))", "transpose(exp(x))"),
    Row("transpose-after-scale", "scale(transpose(x), s)", "transpose(scale(x, s))"),
    Row("sum-of-transpose", "sum[1](transpose(x))", "sum[0](x)"),
    Row("max-of-transpose", "max[1](transpose(x))", "max[0](x)"),
    Row(
        "concat-of-transposes",
        "concat[1](transpose(x), transpose(y))",
        "transpose(concat[0](x, y))",
    ),
    Row("relu-whole", "concat[a](relu(x), relu(y))", "relu(concat[a](x, y))", generic=True),
    Row(
        "add-whole",
        "concat[a](add(x, y), add(z, u))",
        "add(concat[a](x, z), concat[a](y, u))",
        generic=True,
    ),
    Row(
        "concat-geometry",
        "concat[a](concat[b](x, y), concat[b](z, u))",
        "concat[b](concat[a](x, z), concat[a](y, u))",
        generic=True,
    ),
    Row(
        "split-of-concat",
        "split[a](concat[a](x, y)).0; split[a](concat[a](x, y)).1",
        "x; y",
        generic=True,
    ),
)

REDUCTIONS = (
    Row("sum-of-add", "sum[a](add(x, y))", "add(sum[a](x), sum[a](y))", generic=True),
    Row("add-of-sums", "add(sum[a](x), sum[a](y))", "sum[a](add(x, y))", generic=True),
    Row("sum-of-concat", "sum[a](concat[a](x, y))", "add(sum[a](x), sum[a](y))", generic=True),
    Row("sum-of-neg", "sum[a](neg(x))", "neg(sum[a](x))", generic=True),
    Row(
        "factor-out-of-sum",
        "sum[a](mul(x, expand[a](u, x)))",
        "mul(sum[a](x), u)",
        (("u", 1),),
        generic=True,
    ),
)

LOOKUPS = (
    Row(
        "merge-lookups",
        "gather(x, i); gather(x, j)",
        "split[0](gather(x, concat[0](i, j))).0; split[0](gather(x, concat[0](i, j))).1",
        _TABLE,
    ),
    Row("lookup-after-product", "matmul(gather(x, i), w)", "gather(matmul(x, w), i)", _TABLE),
    Row("lookup-before-product", "gather(matmul(x, w), i)", "matmul(gather(x, i), w)", _TABLE),
    Row("lookup-after-relu", "relu(gather(x, i))", "gather(relu(x), i)", _TABLE),
    Row(
        "lookup-of-columns",
        "gather(concat[1](x, y), i)",
        "concat[1](gather(x, i), gather(y, i))",
        _TABLE,
    ),
    Row(
        "merge-tables",
        "concat[1](gather(x, i), gather(y, i))",
        "gather(concat[1](x, y), i)",
        _TABLE,
    ),
)
