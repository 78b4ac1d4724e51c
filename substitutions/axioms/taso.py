"""TASO's 43 properties of whole tensors, and five that it lacks.

Source: TASO (SOSP 2019, table 2).
"""

from __future__ import annotations

from .axiom import Axiom

TASO_AXIOMS: tuple[Axiom, ...] = (
    Axiom("add-assoc", "add(x, add(y, z))", "add(add(x, y), z)"),
    Axiom("add-comm", "add(x, y)", "add(y, x)"),
    Axiom("mul-assoc", "mul(x, mul(y, z))", "mul(mul(x, y), z)"),
    Axiom("mul-comm", "mul(x, y)", "mul(y, x)"),
    Axiom("mul-add", "mul(add(x, y), z)", "add(mul(x, z), mul(y, z))"),
    Axiom("scale-assoc", "scale(scale(x, s), t)", "scale(scale(x, t), s)"),
    Axiom("scale-add", "scale(add(x, y), s)", "add(scale(x, s), scale(y, s))"),
    Axiom("scale-mul", "scale(mul(x, y), s)", "mul(x, scale(y, s))"),
    Axiom("transpose-twice", "transpose(transpose(x))", "x", "matrix"),
    Axiom("transpose-add", "transpose(add(x, y))", "add(transpose(x), transpose(y))", "matrix"),
    Axiom("transpose-mul", "transpose(mul(x, y))", "mul(transpose(x), transpose(y))", "matrix"),
    Axiom("transpose-scale", "scale(transpose(x), s)", "transpose(scale(x, s))", "matrix"),
    Axiom("transpose-relu", "relu(transpose(x))", "transpose(relu(x))", "matrix"),
    Axiom("matmul-assoc", "matmul(x, matmul(y, z))", "matmul(matmul(x, y), z)", "matrix"),
    Axiom("matmul-scale", "scale(matmul(x, y), s)", "matmul(x, scale(y, s))", "matrix"),
    Axiom("matmul-add", "matmul(x, add(y, z))", "add(matmul(x, y), matmul(x, z))", "matrix"),
    Axiom("matmul-add-left", "matmul(add(x, y), z)", "add(matmul(x, z), matmul(y, z))", "matrix"),
    Axiom(
        "matmul-trans", "transpose(matmul(x, y))", "matmul(transpose(y), transpose(x))", "matrix"
    ),
    Axiom("matmul-identity", "matmul(x, identity-matrix)", "x", "matrix"),
    Axiom("mul-ones", "mul(x, ones)", "x"),
    Axiom("conv-scale", "conv(scale(x, s), w)", "conv(x, scale(w, s))", "image"),
    Axiom("conv-scale-relu", "conv[2](scale(x, s), w)", "conv[2](x, scale(w, s))", "image"),
    Axiom("conv-scale-out", "scale(conv(x, w), s)", "conv(scale(x, s), w)", "image"),
    Axiom("conv-add-weight", "conv(x, add(w, v))", "add(conv(x, w), conv(x, v))", "image"),
    Axiom("conv-add-input", "conv(add(x, y), w)", "add(conv(x, w), conv(y, w))", "image"),
    Axiom("conv-enlarge", "conv(x, w)", "conv(x, enlarge[3, 3](w))", "image"),
    Axiom("conv-relu", "conv[2](x, w)", "relu(conv(x, w))", "image"),
    Axiom("conv-mean", "conv(x, mean-kernel[3, 3])", "avgpool[3, 3](x)", "image"),
    Axiom("conv-identity", "conv(x, identity-kernel[3, 3])", "x", "image"),
    Axiom("mean-identity", "avgpool[3, 3](identity-kernel[3, 3])", "mean-kernel[3, 3]", "image"),
    Axiom("split-0-of-rows", "split[0](concat[0](x, y)).0", "x"),
    Axiom("split-1-of-rows", "split[0](concat[0](x, y)).1", "y"),
    Axiom("split-0-of-cols", "split[1](concat[1](x, y)).0", "x"),
    Axiom("split-1-of-cols", "split[1](concat[1](x, y)).1", "y"),
    Axiom(
        "concat-geometry",
        "concat[0](concat[1](x, y), concat[1](z, u))",
        "concat[1](concat[0](x, z), concat[0](y, u))",
    ),
    Axiom("concat-0-scale", "concat[0](scale(x, s), scale(y, s))", "scale(concat[0](x, y), s)"),
    Axiom("concat-1-scale", "concat[1](scale(x, s), scale(y, s))", "scale(concat[1](x, y), s)"),
    Axiom(
        "concat-0-add", "concat[0](add(x, y), add(z, u))", "add(concat[0](x, z), concat[0](y, u))"
    ),
    Axiom(
        "concat-1-add", "concat[1](add(x, y), add(z, u))", "add(concat[1](x, z), concat[1](y, u))"
    ),
    Axiom(
        "concat-0-mul", "concat[0](mul(x, y), mul(z, u))", "mul(concat[0](x, z), concat[0](y, u))"
    ),
    Axiom(
        "concat-1-mul", "concat[1](mul(x, y), mul(z, u))", "mul(concat[1](x, z), concat[1](y, u))"
    ),
    Axiom("concat-0-relu", "concat[0](relu(x), relu(y))", "relu(concat[0](x, y))"),
    Axiom("concat-1-relu", "concat[1](relu(x), relu(y))", "relu(concat[1](x, y))"),
    Axiom(
        "concat-trans",
        "concat[1](transpose(x), transpose(y))",
        "transpose(concat[0](x, y))",
        "matrix",
    ),
    Axiom(
        "concat-matmul-cols",
        "concat[1](matmul(x, y), matmul(x, z))",
        "matmul(x, concat[1](y, z))",
        "matrix",
    ),
    Axiom(
        "concat-matmul-rows",
        "concat[0](matmul(x, z), matmul(y, z))",
        "matmul(concat[0](x, y), z)",
        "matrix",
    ),
    Axiom(
        "concat-matmul-inner",
        "matmul(concat[1](x, z), concat[0](y, u))",
        "add(matmul(x, y), matmul(z, u))",
        "matrix",
    ),
    Axiom(
        "concat-conv-batch",
        "concat[0](conv(x, w), conv(y, w))",
        "conv(concat[0](x, y), w)",
        "image",
    ),
    Axiom(
        "concat-conv-outputs",
        "concat[1](conv(x, w), conv(x, v))",
        "conv(x, concat[0](w, v))",
        "image",
    ),
    Axiom(
        "concat-conv-inner",
        "conv(concat[1](x, y), concat[1](w, v))",
        "add(conv(x, w), conv(y, v))",
        "image",
    ),
    Axiom(
        "concat-avgpool-channels",
        "concat[1](avgpool[3, 3](x), avgpool[3, 3](y))",
        "avgpool[3, 3](concat[1](x, y))",
        "image",
    ),
    Axiom(
        "concat-avgpool-batch",
        "concat[0](avgpool[3, 3](x), avgpool[3, 3](y))",
        "avgpool[3, 3](concat[0](x, y))",
        "image",
    ),
    Axiom(
        "concat-maxpool-batch",
        "concat[0](maxpool[3, 3](x), maxpool[3, 3](y))",
        "maxpool[3, 3](concat[0](x, y))",
        "image",
    ),
    Axiom(
        "concat-maxpool-channels",
        "concat[1](maxpool[3, 3](x), maxpool[3, 3](y))",
        "maxpool[3, 3](concat[1](x, y))",
        "image",
    ),
    Axiom("pool-scale", "scale(avgpool[3, 3](x), s)", "avgpool[3, 3](scale(x, s))", "image"),
    Axiom("relu-twice", "relu(relu(x))", "relu(x)"),
)
