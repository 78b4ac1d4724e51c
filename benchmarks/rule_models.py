# pyright: basic
"""Small models of the families in which rules of the catalogue occur, as their authors write them.

`FAMILIES[name]()` gives (loss, params, batch). Beside them stand the examples and TASO's models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

BF16 = jnp.bfloat16
relu = jax.nn.relu


def _a(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _rows(table: Any, index: Any) -> Any:
    return jnp.take(table, index, axis=0, mode="clip")


def _conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def lora() -> Any:
    """Adapters beside their weights, and a factorised layer (Hu et al. 2021)."""

    def loss(p: Any, x: Any) -> Any:
        x = jnp.tanh(x @ p["w"] + (x @ p["down"]) @ p["up"])
        x = jnp.tanh((x @ p["down"]) @ p["up"])
        x = x @ (p["down"] @ p["up"]) + x @ (p["w"] + p["down"] @ p["up"])
        return jnp.mean(x * x)

    return loss, {"w": _a(32, 32), "down": _a(32, 4), "up": _a(4, 32)}, _a(8, 32)


def delta_tuning() -> Any:
    """A frozen weight and a learnt difference, each applied (Guo et al. 2021)."""
    return (
        lambda p, x: jnp.mean(jnp.tanh(x @ p["w"] + x @ p["delta"]) ** 2),
        {"w": _a(16, 16), "delta": _a(16, 16)}, _a(8, 16),
    )  # fmt: skip


def reglu() -> Any:
    """A gated layer with relu (Shazeer 2020)."""
    return (
        lambda p, x: jnp.mean(((relu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]) ** 2),
        {"gate": _a(16, 32), "up": _a(16, 32), "down": _a(32, 16)}, _a(2, 8, 16),
    )  # fmt: skip


def tree_lstm() -> Any:
    """One node of a tree with two children that share a weight (Tai et al. 2015)."""

    def loss(p: Any, b: Any) -> Any:
        left, right = b["left"], b["right"]
        i = jax.nn.sigmoid(left @ p["i"] + right @ p["i"])
        u = jnp.tanh(left @ p["u"] + right @ p["u"])
        return jnp.mean((i * u) ** 2)

    return loss, {"i": _a(16, 16), "u": _a(16, 16)}, {"left": _a(4, 16), "right": _a(4, 16)}


def lstm_joined() -> Any:
    """A cell whose input and state are joined, and so are their weights."""

    def loss(p: Any, b: Any) -> Any:
        gates = jnp.concatenate([b["x"], b["h"]], 1) @ jnp.concatenate([p["w"], p["u"]], 0)
        i, f, g, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f) + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jnp.mean((jax.nn.sigmoid(o) * jnp.tanh(c)) ** 2)

    return loss, {"w": _a(8, 64), "u": _a(16, 64)}, {"x": _a(4, 8), "h": _a(4, 16)}


def columns() -> Any:
    """Examples as columns, as in textbooks."""

    def loss(p: Any, x: Any) -> Any:
        h = relu(lax.dot(p["w"].T, x.T))
        return jnp.mean(lax.dot(p["v"].T, h).T ** 2)

    return loss, {"w": _a(12, 16), "v": _a(16, 4)}, _a(8, 12)


def clip() -> Any:
    """Similarities of images and texts, scaled by a learnt temperature (Radford et al. 2021)."""

    def loss(p: Any, b: Any) -> Any:
        image, text = b["image"] @ p["image"], b["text"] @ p["text"]
        logits = (jnp.exp(p["scale"]) * image) @ text.T
        both = jax.nn.logsumexp(logits, axis=1) + jax.nn.logsumexp(logits.T, axis=1)
        return jnp.mean(both) - 2 * jnp.mean(jnp.diagonal(logits))

    params = {"image": _a(12, 8), "text": _a(10, 8), "scale": _a()}
    return loss, params, {"image": _a(6, 12), "text": _a(6, 10)}


def sinkhorn() -> Any:
    """Scores balanced over rows and columns (SwAV, Caron et al. 2020; SuperGlue)."""

    def loss(p: Any, x: Any) -> Any:
        q = jnp.exp((x @ p["prototypes"]).T)
        q = q / jnp.sum((x @ p["prototypes"]).T, axis=1, keepdims=True)
        mass = jnp.sum(q.T * p["scale"], axis=1) + jnp.sum(relu(x.T), axis=1).mean()
        return jnp.mean(mass**2) + jnp.max(x.T, axis=1).mean()

    return loss, {"prototypes": _a(8, 5), "scale": _a()}, _a(6, 8)


def squeezenet() -> Any:
    """Fire modules: activations of two expansions, joined (Iandola et al. 2016)."""

    def loss(p: Any, x: Any) -> Any:
        for q in p:
            s = relu(_conv(x, q["squeeze"]))
            x = jnp.concatenate([relu(_conv(s, q["one"])), relu(_conv(s, q["three"]))], axis=-1)
        return jnp.mean(jnp.sum(x, axis=(1, 2)) ** 2)

    fire = lambda n: {"squeeze": _a(1, 1, n, 4), "one": _a(1, 1, 4, 8), "three": _a(3, 3, 4, 8)}  # noqa: E731
    return loss, [fire(3), fire(16)], _a(2, 8, 8, 3)


def rep_vgg() -> Any:
    """Branches of equal kernels that are added up (Ding et al. 2021), after a mosaic of images."""

    def loss(p: Any, b: Any) -> Any:
        top = jnp.concatenate([b[0], b[1]], axis=2)
        x = jnp.concatenate([top, jnp.concatenate([b[2], b[3]], axis=2)], axis=1)
        for q in p:
            x = relu(_conv(x, q[0]) + _conv(x, q[1]))
        return jnp.mean(x * x)

    return loss, [[_a(3, 3, 3, 8)] * 2, [_a(3, 3, 8, 8)] * 2], [_a(2, 4, 4, 3)] * 4


def skip_init() -> Any:
    """Residual branches scaled by one learnt number (De and Smith 2020)."""

    def loss(p: Any, x: Any) -> Any:
        for q in p:
            x = x + _conv(relu(x), q["w"]) * q["scale"]
        return jnp.mean(x * x)

    return loss, [{"w": _a(3, 3, 4, 4), "scale": _a()}] * 2, _a(2, 6, 6, 4)


def coupling_flow() -> Any:
    """Halves that are joined after one layer and split before the next (Dinh et al. 2017)."""

    def loss(p: Any, x: Any) -> Any:
        logdet = jnp.zeros(())
        for q in p:
            a, b = jnp.split(x, 2, axis=1)
            s = jnp.tanh(a @ q["s"])
            x = jnp.concatenate([b * jnp.exp(s) + a @ q["t"], a], axis=1)
            logdet = logdet + jnp.mean(s)
        return jnp.mean(jnp.sum(x, axis=1) ** 2) - logdet

    return loss, [{"s": _a(4, 4), "t": _a(4, 4)}] * 3, _a(6, 8)


def collaborative() -> Any:
    """Two tables for the same users and items (He et al. 2017), one of them pre-trained."""

    def loss(p: Any, b: Any) -> Any:
        both = jnp.concatenate([_rows(p["user"], b), _rows(p["bias"], b)], axis=1)
        known = _rows(jnp.concatenate([p["learnt"], p["fixed"]], axis=1), b)
        deep = relu(_rows(p["deep"], b)) @ p["w"]
        return jnp.mean(both**2) + jnp.mean(known**2) + jnp.mean(deep**2)

    params = {"user": _a(16, 4), "bias": _a(16, 2), "learnt": _a(16, 3), "fixed": _a(16, 5),
              "deep": _a(16, 4), "w": _a(4, 4)}  # fmt: skip
    return loss, params, _i(8)


def ranking() -> Any:
    """An item that was chosen and one that was not, of one table (BPR, Rendle et al. 2009)."""

    def loss(p: Any, b: Any) -> Any:
        user = _rows(p["user"], b["user"])
        chosen, other = _rows(p["item"], b["chosen"]), _rows(p["item"], b["other"])
        return -jnp.mean(jax.nn.log_sigmoid(jnp.sum(user * (chosen - other), axis=1)))

    params = {"user": _a(16, 4), "item": _a(24, 4)}
    return loss, params, {name: _i(8) for name in ("user", "chosen", "other")}


def mixed_precision() -> Any:
    """Casts where libraries place them: tables, tokens and keys in 16 bits, a scaled loss."""

    def loss(p: Any, ids: Any) -> Any:
        x = _rows(p["table"].astype(BF16), ids) + _rows(p["position"], ids).astype(BF16)
        x = jnp.concatenate([p["cls"].astype(BF16), x.reshape(-1, 8)], axis=0)
        more = jnp.concatenate([p["cls"], p["register"]], axis=0).astype(BF16)
        state = jnp.concatenate([p["register"].astype(BF16), p["prefix"].astype(BF16)], axis=0)
        x = jnp.concatenate([x, state], axis=0)
        keys = jnp.concatenate([(x @ p["k"].astype(BF16)).T, more.T], axis=1)
        prefix = p["prefix"].T.astype(BF16) + p["prefix"].astype(BF16).T
        scores = jax.nn.softmax((x @ keys).astype(jnp.float32), axis=-1)
        ones = jnp.broadcast_to(p["gain"], (4, 8)).astype(BF16)
        total = jnp.sum(jnp.concatenate([scores, scores]), axis=0).mean()
        return jnp.sum(scores * p["scale"]) + total + jnp.sum(ones @ prefix).astype(jnp.float32)

    params = {"table": _a(16, 8), "position": _a(16, 8), "cls": _a(1, 8), "register": _a(3, 8),
              "k": _a(8, 8), "prefix": _a(5, 8), "gain": _a(8), "scale": _a()}  # fmt: skip
    return loss, params, _i(6)


def layer_scale() -> Any:
    """A gain of every channel before a mean over tokens (Touvron et al. 2021)."""
    return (
        lambda p, x: jnp.mean(jnp.sum(jnp.tanh(x) * p[None, :], axis=0) ** 2), _a(8), _a(6, 8),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], Any]] = {
    "lora": lora, "delta-tuning": delta_tuning, "reglu": reglu, "tree-lstm": tree_lstm,
    "lstm-joined": lstm_joined, "columns": columns, "clip": clip, "sinkhorn": sinkhorn,
    "squeezenet": squeezenet, "rep-vgg": rep_vgg, "skip-init": skip_init,
    "coupling-flow": coupling_flow, "collaborative": collaborative, "ranking": ranking,
    "mixed-precision": mixed_precision, "layer-scale": layer_scale,
}  # fmt: skip
