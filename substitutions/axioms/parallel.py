"""Equations of tensors on logical devices.

Source: Unity (OSDI 2022, section 4), whose published verifier has six of them.
"""

from __future__ import annotations

from .axiom import Axiom

_EACH_DIMENSION = tuple(
    Axiom(name, left.replace("#", str(d)), right.replace("#", str(d)), "parallel")
    for d in (1, 2)
    for name, left, right in (
        (f"combine-partition-{d}", "combine[#, k](partition[#, k](x))", "x"),
        (f"partition-combine-{d}", "partition[#, k](combine[#, k](x))", "x"),
        (
            f"partition-replicate-{d}",
            "partition[#, k](replicate[m](x))",
            "replicate[m](partition[#, k](x))",
        ),
        (f"partition-reduce-{d}", "partition[#, k](reduce[m](x))", "reduce[m](partition[#, k](x))"),
        (
            f"combine-replicate-{d}",
            "combine[#, k](replicate[m](x))",
            "replicate[m](combine[#, k](x))",
        ),
        (f"combine-reduce-{d}", "combine[#, k](reduce[m](x))", "reduce[m](combine[#, k](x))"),
        (f"partition-relu-{d}", "partition[#, k](relu(x))", "relu(partition[#, k](x))"),
        (f"combine-relu-{d}", "combine[#, k](relu(x))", "relu(combine[#, k](x))"),
        (
            f"partition-add-{d}",
            "partition[#, k](add(x, y))",
            "add(partition[#, k](x), partition[#, k](y))",
        ),
        (
            f"partition-mul-{d}",
            "partition[#, k](mul(x, y))",
            "mul(partition[#, k](x), partition[#, k](y))",
        ),
        (
            f"partition-concat-{d}",
            f"partition[#, k](concat[{3 - d}](x, y))",
            f"concat[{3 - d}](partition[#, k](x), partition[#, k](y))",
        ),
    )
)
PARALLEL_AXIOMS: tuple[Axiom, ...] = (
    *_EACH_DIMENSION,
    Axiom("concat-2-relu", "concat[2](relu(x), relu(y))", "relu(concat[2](x, y))", "parallel"),
    Axiom(
        "concat-2-add",
        "concat[2](add(x, y), add(z, u))",
        "add(concat[2](x, z), concat[2](y, u))",
        "parallel",
    ),
    Axiom(
        "concat-2-mul",
        "concat[2](mul(x, y), mul(z, u))",
        "mul(concat[2](x, z), concat[2](y, u))",
        "parallel",
    ),
    Axiom("split-0-of-2", "split[2](concat[2](x, y)).0", "x", "parallel"),
    Axiom("split-1-of-2", "split[2](concat[2](x, y)).1", "y", "parallel"),
    Axiom(
        "partition-partition",
        "partition[1, k](partition[2, m](x))",
        "partition[2, m](partition[1, k](x))",
        "parallel",
    ),
    Axiom("replicate-relu", "replicate[k](relu(x))", "relu(replicate[k](x))", "parallel"),
    Axiom(
        "replicate-add",
        "replicate[k](add(x, y))",
        "add(replicate[k](x), replicate[k](y))",
        "parallel",
    ),
    Axiom(
        "replicate-mul",
        "replicate[k](mul(x, y))",
        "mul(replicate[k](x), replicate[k](y))",
        "parallel",
    ),
    Axiom(
        "replicate-concat-1",
        "replicate[k](concat[1](x, y))",
        "concat[1](replicate[k](x), replicate[k](y))",
        "parallel",
    ),
    Axiom(
        "replicate-concat-2",
        "replicate[k](concat[2](x, y))",
        "concat[2](replicate[k](x), replicate[k](y))",
        "parallel",
    ),
    Axiom("reduce-add", "reduce[k](add(x, y))", "add(reduce[k](x), reduce[k](y))", "parallel"),
    Axiom(
        "reduce-mul-replica",
        "reduce[k](mul(replicate[k](x), y))",
        "mul(x, reduce[k](y))",
        "parallel",
    ),
    Axiom("linear-relu", "linear[2](x, w)", "relu(linear(x, w))", "parallel"),
    Axiom(
        "linear-rows",
        "linear(partition[1, k](x), replicate[k](w))",
        "partition[1, k](linear(x, w))",
        "parallel",
    ),
    Axiom(
        "linear-outputs",
        "linear(replicate[k](x), partition[1, k](w))",
        "partition[2, k](linear(x, w))",
        "parallel",
    ),
    Axiom(
        "linear-inner",
        "reduce[k](linear(partition[2, k](x), partition[2, k](w)))",
        "linear(x, w)",
        "parallel",
    ),
    Axiom(
        "linear-add-input", "linear(add(x, y), w)", "add(linear(x, w), linear(y, w))", "parallel"
    ),
    Axiom(
        "linear-add-weight", "linear(x, add(w, v))", "add(linear(x, w), linear(x, v))", "parallel"
    ),
    Axiom(
        "linear-concat-rows",
        "linear(concat[1](x, y), w)",
        "concat[1](linear(x, w), linear(y, w))",
        "parallel",
    ),
    Axiom(
        "linear-concat-outputs",
        "linear(x, concat[1](w, v))",
        "concat[2](linear(x, w), linear(x, v))",
        "parallel",
    ),
    Axiom(
        "linear-concat-inner",
        "linear(concat[2](x, y), concat[2](w, v))",
        "add(linear(x, w), linear(y, v))",
        "parallel",
    ),
    Axiom(
        "linear-replica-sum",
        "linear(reduce[k](replicate[k](x)), w)",
        "reduce[k](replicate[k](linear(x, w)))",
        "parallel",
    ),
    Axiom(
        "linear-replica-sum-w",
        "linear(x, reduce[k](replicate[k](w)))",
        "reduce[k](replicate[k](linear(x, w)))",
        "parallel",
    ),
)
