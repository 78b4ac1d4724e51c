# pyright: basic
"""The models of TASO's measurements, in JAX as commonly written, at sizes for a CPU.

Sources: Zoph and Le 2017 (NASCell), Xie et al. 2017 (ResNeXt-50, 32x4d), Zoph et al. 2018 (NasNet-A
normal cells), Devlin et al. 2019 (BERT); TASO, SOSP 2019, section 8, for the choice. Beside them
three ways of writing a model that rewrites are for. `model(name)` gives (loss, params, batch).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Model = tuple[Callable[[Any, Any], Any], Any, Any]


def _a(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def nasrnn(hidden: int = 512, steps: int = 5, batch: int = 1) -> Model:
    """Eight gates with weights of their own, written out over time."""
    relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh

    def cell(params: Any, x: Any, h: Any) -> Any:
        t = [x @ w + h @ u for w, u in params]
        a = relu(t[0]) + sigmoid(t[3])
        b = sigmoid(t[1]) + tanh(t[2])
        c = sigmoid(t[4]) * tanh(t[5])
        d = sigmoid(t[6]) * relu(t[7])
        return tanh(tanh(sigmoid(a) + tanh(b)) * tanh(tanh(c) * tanh(d)))

    def loss(params: Any, xs: Any) -> Any:
        h = jnp.zeros_like(xs[0])
        for step in range(steps):
            h = cell(params, xs[step], h)
        return jnp.mean(h * h)

    return loss, [(_a(hidden, hidden),) * 2 for _ in range(8)], _a(steps, batch, hidden)


def bert(hidden: int = 512, heads: int = 8, layers: int = 2, seq: int = 64) -> Model:
    """Encoder layers with separate projections of queries, keys and values."""
    width = hidden // heads

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    def layer(x: Any, p: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhe->bshe", x, p[n]) for n in "qkv")
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) * width**-0.5
        y = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores), v)
        x = norm(x + jnp.einsum("bshe,hed->bsd", y, p["o"]))
        return norm(x + jax.nn.gelu(x @ p["up"]) @ p["down"])

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = layer(x, p)
        return jnp.mean(x * x)

    one = {n: _a(hidden, heads, width) for n in "qkv"}
    one |= {"o": _a(heads, width, hidden), "up": _a(hidden, 4 * hidden),
            "down": _a(4 * hidden, hidden)}  # fmt: skip
    return loss, [one] * layers, _a(1, seq, hidden)


def _conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def resnext(size: int = 64, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> Model:
    """ResNeXt-50 (32x4d); normalisation is a gain and a shift, as at inference."""
    params: dict[str, Any] = {"stem": _a(7, 7, 3, 64)}
    plan: list[tuple[str, int, bool]] = []
    inside = 64
    for stage, count in enumerate(blocks):
        wide, out = 128 << stage, 256 << stage
        for block in range(count):
            name = f"{stage}/{block}"
            params[name] = {
                "in": _a(1, 1, inside, wide), "mid": _a(3, 3, wide // 32, wide),
                "out": _a(1, 1, wide, out), "gain": [_a(wide), _a(wide), _a(out)],
                "shift": [_a(wide), _a(wide), _a(out)],
            }  # fmt: skip
            if block == 0:
                params[name]["side"] = _a(1, 1, inside, out)
            plan.append((name, 2 if block == 0 and stage else 1, block == 0))
            inside = out

    def loss(params: Any, x: Any) -> Any:
        x = jax.nn.relu(_conv(x, params["stem"], 2))
        for name, stride, has_side in plan:
            p = params[name]
            y = jax.nn.relu(_conv(x, p["in"]) * p["gain"][0] + p["shift"][0])
            y = jax.nn.relu(_conv(y, p["mid"], stride, 32) * p["gain"][1] + p["shift"][1])
            y = _conv(y, p["out"]) * p["gain"][2] + p["shift"][2]
            x = jax.nn.relu(y + (_conv(x, p["side"], stride) if has_side else x))
        return jnp.mean(x * x)

    return loss, params, _a(1, size, size, 3)


def nasnet(size: int = 16, channels: int = 64, cells: int = 4) -> Model:
    """Normal cells of NasNet-A: separable convolutions and pools of two inputs, concatenated."""

    def separable(x: Any, p: Any) -> Any:
        return _conv(_conv(jax.nn.relu(x), p["depth"], groups=x.shape[-1]), p["point"])

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9

    def loss(params: Any, x: Any) -> Any:
        before = x
        for p in params:
            a, b = _conv(x, p["a"]), _conv(before, p["b"])
            s = [separable(y, q) for y, q in zip((a, b, b, b, a), p["sep"], strict=True)]
            before, x = (
                x,
                jnp.concatenate(
                    [b, s[0] + s[1], pool(a) + b, pool(b) + pool(b), s[2] + s[3], s[4] + a], axis=-1
                ),
            )
        return jnp.mean(x * x)

    params, widths = [], [channels, channels]
    for _ in range(cells):
        sep = [
            {"depth": _a(k, k, 1, channels), "point": _a(1, 1, channels, channels)}
            for k in (3, 5, 3, 5, 3)
        ]
        params.append({"a": _a(1, 1, widths[-1], channels), "b": _a(1, 1, widths[-2], channels),
                       "sep": sep})  # fmt: skip
        widths.append(6 * channels)
    return loss, params, _a(1, size, size, channels)


def linear_attention(width: int = 64, seq: int = 1024, heads: int = 8) -> Model:
    """Attention without a softmax, scores first."""

    def loss(params: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhe->bhse", x, params[n]) for n in "qkv")
        y = jnp.einsum("bhqe,bhke->bhqk", q, k) @ v
        return jnp.mean(y * y)

    return loss, {n: _a(heads * width, heads, width) for n in "qkv"}, _a(2, seq, heads * width)


def low_rank(hidden: int = 1024, rank: int = 8, layers: int = 4, rows: int = 64) -> Model:
    """Layers with a low-rank correction that is added to the weight before it is used."""

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = x + jnp.tanh(x @ (p["w"] + p["u"] @ p["v"]))
        return jnp.mean(x * x)

    one = {"w": _a(hidden, hidden), "u": _a(hidden, rank), "v": _a(rank, hidden)}
    return loss, [one] * layers, _a(rows, hidden)


def projected_table(rows: int = 32768, width: int = 64, hidden: int = 512) -> Model:
    """A factorised embedding whose table is projected whole before it is looked up (ALBERT)."""

    def loss(params: Any, tokens: Any) -> Any:
        y = (params["table"] @ params["up"])[tokens]
        return jnp.mean(y * y)

    params = {"table": _a(rows, width), "up": _a(width, hidden)}
    return loss, params, jax.ShapeDtypeStruct((8, 128), jnp.int32)


def adapters(
    hidden: int = 512, inner: int = 2048, rank: int = 16, seq: int = 256, batch: int = 4,
    heads: int = 8, groups: int = 2,
) -> Model:  # fmt: skip
    """A decoder layer of Llama's kind, adapters of all projections added where they are used.

    Source: Hu et al., LoRA, 2021, which adds them to the weight for inference.
    """
    head, rows = hidden // heads, heads // groups
    sizes = {
        "q": (hidden, hidden), "k": (hidden, groups * head), "v": (hidden, groups * head),
        "o": (hidden, hidden), "gate": (hidden, inner), "up": (hidden, inner),
        "down": (inner, hidden),
    }  # fmt: skip

    def loss(params: Any, x: Any) -> Any:
        def project(name: str, h: Any) -> Any:
            p = params[name]
            return h @ (p["w"] + p["u"] @ p["v"])

        q, k, v = (project(n, x).reshape(batch, seq, -1, head) for n in "qkv")
        k, v = (jnp.repeat(each, rows, axis=2) for each in (k, v))
        scores = jnp.einsum("bshd,bthd->bhst", q, k) * head**-0.5
        y = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), v)
        x = x + project("o", y.reshape(batch, seq, hidden))
        x = x + project("down", jax.nn.silu(project("gate", x)) * project("up", x))
        return jnp.mean(x * x)

    params = {
        name: {"w": _a(m, n), "u": _a(m, rank), "v": _a(rank, n)} for name, (m, n) in sizes.items()
    }
    return loss, params, _a(batch, seq, hidden)


MODELS: dict[str, Callable[[], Model]] = {
    "nasrnn": nasrnn, "bert": bert, "resnext-50": resnext, "nasnet-a": nasnet,
    "linear-attention": linear_attention, "low-rank": low_rank, "projected-table": projected_table,
    "adapters": adapters,
}  # fmt: skip


def adapters_8b(batch: int) -> Model:
    """The layer with the sizes of Llama-3-8B."""
    return adapters(4096, 14336, 64, 2048, batch, 32, 8)


def step_of(name: str, *, train: bool) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Loss, or a step of gradient descent, and its arguments as shapes."""
    loss, params, batch = MODELS[name]()

    def train_step(params: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    return (train_step if train else loss), (params, batch)
