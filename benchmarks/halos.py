# pyright: basic
"""Fields and large images on eight H100s, split in space with borders exchanged, and without.

    python -m benchmarks halos [--quick] [--only "unet, batch 1"] [--verify]

Programs, each a step that keeps its state where it is:

    navier-stokes   2-D, periodic, 4,096 x 4,096 in float32: advection and diffusion by central
                    differences, a projection by 20 rounds of Jacobi, all with `jnp.roll`
    stencil         3-D, 512 x 512 x 512 in float32: 10 rounds of 27 points, `conv_general_dilated`
    unet            a training step with SGD on images of 2,048 x 2,048, bfloat16, four levels of 32
                    to 256 channels, max pools and transposed convolutions; batch 1, 2 and 8
    boundaries      2-D, 8,192 x 8,192 in float32: 20 steps of heat by slices, `.at[1:-1, 1:-1].set`
    valid           a training step with SGD of four convolutions with padding VALID, 32 channels,
                    bfloat16, on an image of 2,048 x 2,048
    odd             2-D, periodic, 8,001 x 8,001 in float32: 10 steps of 5 points with `jnp.roll`
    recurrence      h[i] = a[i] h[i - 1] + b[i] by `associative_scan`, 2^30 elements in float32
    levels, blocks  the same of 2^24 and 2^26 elements, and in blocks that are joined

From `boundaries` on, sizes do not divide or differ by borders, and are padded. `without` is the
plan of the same program if no op may slide: dimensions of windows and shifts are then whole;
`gathered` the same with the state, or the images, pinned to be split in space. `sent` is what a
device sends in a step. `error`: the decisions of the plan with halos, taken for the same program on
a small field, padded likewise, run on eight host devices; the largest difference of a result from
that of one device, over its largest magnitude. Programs are planned as they are written
(`substitutions=False`), so that the decisions are those of the small program's operations. The
operations of the recurrence depend on its length: a plan of 2^22 elements in shards is run instead,
of 2^18 of `levels` and `blocks`.

With `--verify` what XLA's compiler for GPUs makes of each plan (extra `gpu-aot`) follows its row.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.analysis import flatten
from ir.ops import convolution, shift, window
from ir.trace import trace
from planner import plan, verify
from planner.emit import compile_plan
from planner.sharding.lower import lower_decisions
from planner.sharding.padding.bordered import Borders
from planner.sharding.padding.classified import Classified
from planner.sharding.padding.edit import padded

CLUSTER = "8xh100"


def navier_stokes(size: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """One step of an incompressible flow in a periodic square."""
    step, viscosity = 1e-3, 1e-3
    h = 1.0 / size

    def slope(f: Any, axis: int) -> Any:
        return (jnp.roll(f, -1, axis) - jnp.roll(f, 1, axis)) / (2 * h)

    def near(f: Any) -> Any:
        return sum(jnp.roll(f, by, axis) for axis in (0, 1) for by in (1, -1))

    def flow(state: Any) -> Any:
        u, v = state["u"], state["v"]
        made = []
        for f in (u, v):
            moved = u * slope(f, 0) + v * slope(f, 1)
            made.append(f + step * (viscosity * (near(f) - 4 * f) / h**2 - moved))
        u, v = made
        source = (slope(u, 0) + slope(v, 1)) * h**2 / step

        def jacobi(p: Any, _: Any) -> Any:
            return (near(p) - source) / 4, None

        p, _ = lax.scan(jacobi, state["p"], None, length=20)
        return {"u": u - step * slope(p, 0), "v": v - step * slope(p, 1), "p": p}

    shape = jax.ShapeDtypeStruct((size, size), "float32")
    return flow, (), ({"u": shape, "v": shape, "p": shape},)


def stencil(size: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """Rounds of a mean over 27 neighbours, zero beyond the border."""

    def rounds(state: Any, weights: Any) -> Any:
        def one(x: Any, _: Any) -> Any:
            return lax.conv_general_dilated(x, weights, (1, 1, 1), "SAME"), None

        return {"x": lax.scan(one, state["x"], None, length=10)[0]}

    x = jax.ShapeDtypeStruct((1, 1, size, size, size), "float32")
    return rounds, (), ({"x": x}, jax.ShapeDtypeStruct((1, 1, 3, 3, 3), "float32"))


def unet(size: int, batch: int, widths: tuple[int, ...]) -> Any:
    """A training step of a network of convolutions, pools and their inverses."""
    numbers = ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w.astype(x.dtype), (1, 1), "SAME",
                                        dimension_numbers=numbers)  # fmt: skip

    def block(x: Any, ws: Any) -> Any:
        for w in ws:
            x = jax.nn.relu(conv(x, w))
        return x

    def net(params: Any, x: Any) -> Any:
        kept = []
        for ws in params["down"]:
            x = block(x, ws)
            kept.append(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = block(x, params["middle"])
        for ws, up, old in zip(params["up"], params["wider"], kept[::-1], strict=True):
            x = lax.conv_transpose(x, up.astype(x.dtype), (2, 2), "SAME",
                                   dimension_numbers=numbers)  # fmt: skip
            x = block(jnp.concatenate([x, old], -1), ws)
        return conv(x, params["last"])

    def train(params: Any, images: Any, targets: Any) -> Any:
        def loss(params: Any) -> Any:
            found = net(params, images.astype(jnp.bfloat16)).astype(jnp.float32)
            return jnp.mean((found - targets) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    def w(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32")

    ins = (3, *widths)
    *outer, inner = widths
    params = {
        "down": [[w(3, 3, a, b), w(3, 3, b, b)] for a, b in zip(ins, outer, strict=False)],
        "middle": [w(3, 3, outer[-1], inner), w(3, 3, inner, inner)],
        "wider": [w(2, 2, b, a) for a, b in zip(outer[::-1], widths[::-1], strict=False)],
        "up": [[w(3, 3, 2 * a, a), w(3, 3, a, a)] for a in outer[::-1]],
        "last": w(3, 3, widths[0], 3),
    }
    images = w(batch, size, size, 3)
    return train, (0,), (params, images, images)


def boundaries(size: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """Twenty steps of heat between fixed boundaries."""

    def step(_: Any, u: Any) -> Any:
        near = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].set(u[1:-1, 1:-1] + 0.1 * (near - 4 * u[1:-1, 1:-1]))

    def heat(state: Any) -> Any:
        return {"u": lax.fori_loop(0, 20, step, state["u"])}

    return heat, (0,), ({"u": jax.ShapeDtypeStruct((size, size), "float32")},)


def odd(size: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """Ten steps of a periodic field."""

    def step(u: Any, _: Any) -> Any:
        near = sum(jnp.roll(u, by, axis) for axis in (0, 1) for by in (1, -1))
        return u + 0.1 * (near - 4 * u), None

    def waves(state: Any) -> Any:
        return {"u": lax.scan(step, state["u"], None, length=10)[0]}

    return waves, (0,), ({"u": jax.ShapeDtypeStruct((size, size), "float32")},)


def valid(size: int, width: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """A training step of four convolutions without padding."""

    def train(params: Any, images: Any) -> Any:
        def loss(params: Any) -> Any:
            x = images.astype(jnp.bfloat16)
            for w in params:
                x = lax.conv_general_dilated(x, w.astype(x.dtype), (1, 1), "VALID",
                                             dimension_numbers=NUMBERS)  # fmt: skip
                x = jax.nn.relu(x)
            return jnp.mean(x.astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    sizes = (3, width, width, width, width)
    params = [jax.ShapeDtypeStruct((3, 3, a, b), "float32")
              for a, b in itertools.pairwise(sizes)]  # fmt: skip
    return train, (0,), (params, jax.ShapeDtypeStruct((1, size, size, 3), "float32"))


def recurrence(size: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """A linear recurrence."""

    def scan(a: Any, state: Any) -> Any:
        return {"b": lax.associative_scan(_after, (a, state["b"]))[1]}

    row = jax.ShapeDtypeStruct((size,), "float32")
    return scan, (1,), (row, {"b": row})


def blocks(size: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """The same, written as scans in eight blocks, one of their totals, and a join."""

    def scan(a: Any, state: Any) -> Any:
        flat = (x.reshape(8, -1) for x in (a, state["b"]))
        inside = jax.vmap(lambda x: lax.associative_scan(_after, x))(tuple(flat))
        totals = lax.associative_scan(_after, tuple(x[:, -1] for x in inside))
        before = (
            jnp.concatenate([x[:1, 0], t[:-1]])[:, None]
            for x, t in zip(inside, totals, strict=True)
        )
        joined, first = _after(tuple(before), inside)[1], jnp.arange(8)[:, None] == 0
        return {"b": jnp.where(first, inside[1], joined).reshape(-1)}

    return scan, *recurrence(size)[1:]


def _after(x: Any, y: Any) -> Any:
    return x[0] * y[0], x[1] * y[0] + y[1]


NUMBERS = ("NHWC", "HWIO", "NHWC")
CASES: dict[str, tuple[Any, Any]] = {
    "navier-stokes": (lambda: navier_stokes(4096), lambda: navier_stokes(64)),
    "stencil": (lambda: stencil(512), lambda: stencil(16)),
    **{
        f"unet, batch {n}": (
            lambda n=n: unet(2048, n, (32, 64, 128, 256)),
            lambda n=n: unet(128, n, (8, 16, 16, 32)),
        )
        for n in (1, 2, 8)
    },
    "boundaries": (lambda: boundaries(8192), lambda: boundaries(64)),
    "valid": (lambda: valid(2048, 32), lambda: valid(64, 8)),
    "odd": (lambda: odd(8001), lambda: odd(61)),
    "recurrence": (lambda: recurrence(1 << 30), lambda: recurrence(1 << 22)),
    **{
        f"{name}, 2^{n}": (lambda n=n, make=make: make(1 << n), lambda make=make: make(1 << 18))
        for name, make in (("levels", recurrence), ("blocks", blocks))
        for n in (24, 26, 30)
        if (name, n) != ("levels", 30)  # that is the recurrence above
    },
}  # fmt: skip


PINS = {
    "navier-stokes": (("state/*", "[8,-]"),),
    "stencil": (("state/*", "[-,-,8,-,-]"),),
    "unet": (("images", "[-,8,-,-]"), ("targets", "[-,8,-,-]")),
    "boundaries": (("state/*", "[8,-]"),),
    "valid": (("images", "[-,8,-,-]"),),
    "odd": (),  # no argument of this size is split evenly
    **dict.fromkeys(("recurrence", "levels", "blocks"), (("a", "[8]"), ("state/*", "[8]"))),
}
BORDERED = ("boundaries", "valid", "odd", "recurrence", "levels", "blocks")


def _planned(
    made: Any, *, slides: bool, pins: Any = (), bordered: bool = False
) -> tuple[Any, dict[str, Any]]:
    fn, donated, args = made
    start = time.process_time()
    with ExitStack() as stack:
        for module in () if slides else (convolution, shift, window):
            stack.enter_context(mock.patch.object(module, "splitting", lambda spec, _slides: spec))
        found = plan(
            fn, *args, cluster=CLUSTER, baselines=False, substitutions=False,
            padding=bordered and slides,
            pins=pins, donate_argnums=donated or (0,),
        )  # fmt: skip
    program = found.file.programs[0]
    rows = program.collectives
    return found, {
        "step_s": program.step_s, "wire_bytes": sum(row.bytes for row in rows),
        "permuted_bytes": sum(row.bytes for row in rows if row.kind == "collective-permute"),
        "peak_bytes": program.peak_bytes, "gap": found.gap, "mesh": str(program.mesh),
        "cpu_s": time.process_time() - start,
    }  # fmt: skip


def _error(found: Any, made: Any) -> float:
    """The largest difference from one device of a plan's decisions on a smaller program."""
    fn, _, shapes = made
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda t: (rng.normal(size=t.shape) / 8).astype(t.dtype), shapes)
    if fn.__name__ == "scan":
        found, _ = _planned(made, slides=True, pins=PINS["recurrence"], bordered=True)
        here = found.compile()(*args)
    else:
        traced = _padded_alike(trace(fn, *args), found)
        flat, reshard = flatten(traced.graph), found.analysed.reshard
        smaller = lower_decisions(flat, found.decisions, reshard, {})
        here = compile_plan(traced, smaller)(*args)
    one = jax.jit(fn)(*args)
    pairs = zip(jax.tree.leaves(here), jax.tree.leaves(one), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in pairs)


def _padded_alike(traced: Any, found: Any) -> Any:
    """A smaller program with the same dimensions padded as those of a plan."""
    for row in found.file.programs[0].padded:
        groups = Borders(Classified(traced.graph)).groups(8)
        group = next(g for g in groups if g.one.at == (row.place, row.number, row.dim))
        padding = group.one.padding(group.size, group.parts)
        traced = replace(traced, program=padded(traced.program, padding))
    return traced


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Plans each program twice and prints a table.

    Args:
        quick: the stencil only.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks halos")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--verify", action="store_true", help="compile with XLA for GPUs")
    asked = parser.parse_known_args()[0]
    rows: list[dict[str, Any]] = []
    head = ("program", "step ms", "without", "gathered", "sent MB", "in permutes", "without",
            "gathered", "peak GB", "without", "gap", "cpu s", "without", "error")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name, (large, small) in CASES.items():
        if (quick and name != "stencil") or asked.only not in name:
            continue
        bordered = name.split(",")[0] in BORDERED
        (_, whole), (found, halo) = (
            _planned(large(), slides=how, bordered=bordered) for how in (False, True)
        )
        pins = PINS[name.split(",")[0]]
        _, gathered = _planned(large(), slides=False, pins=pins)
        error = _error(found, small())
        print(
            f"| {name} | {halo['step_s'] * 1e3:.2f} | {whole['step_s'] * 1e3:.2f} "
            f"| {gathered['step_s'] * 1e3:.2f} "
            f"| {halo['wire_bytes'] / 1e6:.1f} | {halo['permuted_bytes'] / 1e6:.1f} "
            f"| {whole['wire_bytes'] / 1e6:.1f} | {gathered['wire_bytes'] / 1e6:.1f} "
            f"| {halo['peak_bytes'] / 1e9:.2f} "
            f"| {whole['peak_bytes'] / 1e9:.2f} | {halo['gap']:.1%} | {halo['cpu_s']:.0f} "
            f"| {whole['cpu_s']:.0f} | {error:.1e} |",
            flush=True,
        )
        row = {"program": name, "halo": halo, "without": whole, "gathered": gathered}
        rows.append(row | {"error": error})
        if asked.verify:
            rows[-1]["compiled"] = str(verify(found, compiler="gpu-aot"))
            print(rows[-1]["compiled"], flush=True)
    return rows
