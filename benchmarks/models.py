# pyright: basic
"""Published models as training steps, for the benchmarks: targets are made by `target(name)`.

Sizes: Zheng et al., Alpa, OSDI 2022, table 7 (GPT-39B); Brown et al., 2020 (GPT-3 175B); the
Llama 3 herd, 2024 (8B, 70B, 405B); Jiang et al., Mixtral of Experts, 2024.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from examples.gpt import GPT
from examples.llama import LLAMA_8B, Llama


class RematGPT(GPT):
    """GPT with recomputation of each layer."""

    def block(self, x: Any, layer: Any) -> Any:
        return jax.checkpoint(super().block)(x, layer)


class UnrolledLlama(Llama):
    """Llama with parameters of its own for every layer, in a Python loop."""

    def init(self, key: Any) -> Any:
        params, batch = super().init(key)
        stacked = params["layers"]
        split = [jax.tree.map(lambda p, i=i: p[i], stacked) for i in range(self.layers)]
        return params | {"layers": split}, batch

    def loss(self, params: Any, batch: Any) -> Any:
        x = params["tok"][batch["tokens"]]
        layer = jax.checkpoint(self.layer)
        x = reduce(lambda x, p: layer(x, p)[0], params["layers"], x)
        logits = (self.norm(x, params["norm"]) @ params["head"]).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


class Mixtral(Llama):
    """Llama whose perceptrons are eight experts, two for each token, with a capacity."""

    EXPERTS = 8
    GROUP = 4096  # tokens that share a capacity

    def init(self, key: Any) -> Any:
        params, batch = super().init(key)
        n, m, f, e = self.layers, self.hidden, self.ffn, self.EXPERTS
        shapes = {"gate": (e, m, f), "up": (e, m, f), "down": (e, f, m), "router": (m, e)}
        for name, shape in shapes.items():
            params["layers"][name] = jnp.zeros((n, *shape), self.dtype)
        return params, batch

    def layer(self, x: Any, p: Any) -> Any:
        x = x + self.attention(x, p)
        y = self.norm(x, p["mlp_norm"]).reshape(-1, self.GROUP, self.hidden)
        capacity = 2 * self.GROUP // self.EXPERTS
        logits = (y @ p["router"]).astype(jnp.float32)
        gates, experts = jax.lax.top_k(logits, 2)
        chosen = jax.nn.one_hot(experts, self.EXPERTS)
        queue = jnp.concatenate([chosen[:, :, 0], chosen[:, :, 1]], axis=1)
        rank = jnp.stack(jnp.split(jnp.cumsum(queue, axis=1) - 1, 2, axis=1), axis=2)
        slot = jax.nn.one_hot(jnp.sum(rank * chosen, axis=-1, dtype=int), capacity)
        combine = jnp.einsum("gskc,gske->gsec", slot * jax.nn.softmax(gates)[..., None], chosen)
        sent = jnp.einsum("gsec,gsm->egcm", (combine > 0).astype(x.dtype), y)
        up = jnp.einsum("egcm,emf->egcf", sent, p["up"])
        up = up * jax.nn.silu(jnp.einsum("egcm,emf->egcf", sent, p["gate"]))
        y = jnp.einsum("egcf,efm->egcm", up, p["down"])
        y = jnp.einsum("gsec,egcm->gsm", combine.astype(x.dtype), y)
        return x + y.reshape(x.shape), None

    def attention(self, x: Any, p: Any) -> Any:
        y = self.norm(x, p["attn_norm"])
        q = self.rope(jnp.einsum("bsm,mhd->bshd", y, p["q"]))
        k = self.rope(jnp.einsum("bsm,mgd->bsgd", y, p["k"]))
        v = jnp.einsum("bsm,mgd->bsgd", y, p["v"])
        q = q.reshape(*k.shape[:3], -1, k.shape[-1]) * k.shape[-1] ** -0.5
        scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k).astype(jnp.float32)
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        probs = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(x.dtype)
        heads = jnp.einsum("bgrqk,bkgd->bqgrd", probs, v).reshape(*x.shape[:2], self.heads, -1)
        return jnp.einsum("bshd,hdm->bsm", heads, p["o"])


GPT_39B = RematGPT(51200, 1024, 8192, 64, 48, 1024, "float16", True)
GPT_175B = RematGPT(51200, 2048, 12288, 96, 96, 1536, "bfloat16", True)
LLAMA_405B = LLAMA_8B._replace(hidden=16384, heads=128, ffn=53248, layers=126)
LLAMA_70B = LLAMA_8B._replace(hidden=8192, heads=64, ffn=28672, layers=80)
MIXTRAL = Mixtral(32000, 4096, 4096, 32, 8, 14336, 32, 256, "bfloat16")

# name -> (model, batch that suits n devices, where it is the user's to choose)
SIZES: dict[str, Any] = {
    "gpt-39b": GPT_39B, "gpt-175b": GPT_175B, "llama-8b": LLAMA_8B, "llama-70b": LLAMA_70B,
    "llama-405b": LLAMA_405B, "mixtral-8x7b": MIXTRAL,
}  # fmt: skip


def target(name: str, *, unrolled: bool = False, batch: int = 0, layers: int = 0) -> Any:
    """A training step with shapes for arguments: what `plan` takes.

    Args:
        name: of `SIZES`.
        unrolled: layers written out instead of a `lax.scan`.
        batch: sequences in a step; 0 for the published number.
        layers: 0 for the published number.
    """
    model = SIZES[name]
    changes = {key: n for key, n in (("batch", batch), ("layers", layers)) if n}
    model = model._replace(**changes)
    if unrolled and isinstance(model, GPT):
        model = model._replace(scan=False)
    elif unrolled:
        model = UnrolledLlama(*model)
    return partial(model.target, jax.eval_shape)()
