# pyright: basic
"""Transformers whose perceptrons are experts, as losses that the planner traces.

Tokens choose their experts by the largest of softmax or sigmoid scores, whose weights are made to
sum to one; shared experts see all tokens. Rows of experts are brought together in one of the forms
that people write:

    onehot   products with one-hot masks [tokens, experts, slots] (GShard); a capacity
    slots    scatter into slots of experts, batched products, gather back; a capacity
    ragged   sort by expert, `jax.lax.ragged_dot`, scatter back; no token is dropped

Sources: Lepikhin et al., GShard, arXiv:2006.16668; Gale et al., MegaBlocks, arXiv:2211.15841.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.published_model import FP8, Transformer, again

FORMS = ("onehot", "slots", "ragged")


@dataclass(frozen=True)
class Latent:
    """Attention with low ranks: queries, keys and values are made of a few features of a token.

    q_rank, kv_rank: of these features; turned: features of a head's queries and keys that have
        rotary positions, whose keys all heads share; plain: those without.

    Source: DeepSeek-AI, DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    q_rank: int
    kv_rank: int
    plain: int
    turned: int


@dataclass(frozen=True)
class Experts:
    """A model with experts in every layer.

    dense: everything but the experts.
    head: features of a head of attention.
    experts, active, shared: experts in a layer, those of a token, and those that all tokens see.
    width: inner features of an expert.
    form: one of `FORMS`.
    capacity: slots of an expert against its mean number of tokens in a sequence; the sorted form
        has none.
    balance: weight of the loss that keeps experts equally busy; 0 if something else does.
    latent: low ranks of attention, if it has them; a head's values have `head` features.
    gathers: whether rows are looked up on their way to experts and back, in both passes, and never
        scattered: both ways are known, as those who write such layers by hand know.
    """

    dense: Transformer
    head: int
    experts: int
    active: int
    shared: int
    width: int
    form: str = "slots"
    capacity: float = 1.25
    balance: float = 0.01
    latent: Latent | None = None
    gathers: bool = False

    @property
    def layers(self) -> int:
        return self.dense.layers

    @property
    def hidden(self) -> int:
        return self.dense.hidden

    @property
    def wide_weights(self) -> bool:
        return self.dense.wide_weights

    def parameters(self) -> Any:
        """Shapes of the parameters; those of layers are stacked."""
        m, d, e, f = self.dense.hidden, self.head, self.experts, self.width
        heads, groups = self.dense.heads, self.dense.kv_heads
        found = self.dense.parameters()
        each = {"q": (m, heads, d), "k": (m, groups, d), "v": (m, groups, d), "o": (heads, d, m)}
        if (low := self.latent) is not None:
            each = {
                "q_down": (m, low.q_rank), "q_norm": (low.q_rank,),
                "q": (low.q_rank, heads, low.plain + low.turned),
                "kv_down": (m, low.kv_rank), "kv_norm": (low.kv_rank,), "k_turned": (m, low.turned),
                "k": (low.kv_rank, heads, low.plain), "v": (low.kv_rank, heads, d),
                "o": (heads, d, m),
            }  # fmt: skip
        each |= {"router": (m, e), "up": (e, m, f), "gate": (e, m, f), "down": (e, f, m)}
        if self.shared:
            s = self.shared * f
            each |= {"shared_up": (m, s), "shared_gate": (m, s), "shared_down": (s, m)}
        norms = {name: found["layers"][name].shape[1:] for name in ("attn_norm", "mlp_norm")}
        shapes = (each | norms).items()
        stacked = {
            name: jax.ShapeDtypeStruct((self.dense.layers, *s), self.dense.activations)
            for name, s in shapes
        }
        return found | {"layers": stacked}

    def batch(self, sequences: int) -> Any:
        """Shapes of a batch."""
        return self.dense.batch(sequences)

    def loss(self, params: Any, batch: Any) -> Any:
        """Mean cross entropy of the next token, and the loss of unequal experts."""
        x = params["tok"][batch["tokens"]]
        layer = again(self.layer) if self.dense.recompute == "full" else self.layer
        x, uneven = jax.lax.scan(layer, x, params["layers"])
        logits = self.dense.norm(x, params["norm"], None) @ params["head"]
        entropy = self.dense.entropy(logits, batch["labels"])
        return entropy if uneven is None else entropy + self.balance * jnp.mean(uneven)

    def layer(self, x: Any, p: Any) -> Any:
        """One layer, and how unequal its experts are."""
        y = self.dense.norm(x, p["attn_norm"], None)
        core = self.attention(y, p) if self.latent is None else self.low_rank(y, p, self.latent)
        x = x + self.dense.products("bshd,hdm->bsm", core, p["o"])[0]
        y = self.dense.norm(x, p["mlp_norm"], None)
        weights, chosen, uneven = self.route(y, p["router"])
        found = getattr(self, f"by_{self.form}")(y, weights, chosen, p)
        if self.shared:
            up = (y @ p["shared_up"]) * jax.nn.silu(y @ p["shared_gate"])
            found = found + up @ p["shared_down"]
        return x + found, uneven if self.balance else None

    def attention(self, y: Any, p: Any) -> Any:
        """Attention of heads, before the last product."""
        q, k, v = self.dense.products("bsm,mhd->bshd", y, *(p[name] for name in "qkv"))
        return self.dense.attention(self.dense.rotary(q), self.dense.rotary(k), v, None)

    def low_rank(self, y: Any, p: Any, low: Latent) -> Any:
        """The same with low ranks; values are padded to the features of queries."""
        down_q, down, turned = self.dense.products(
            "bsm,mr->bsr", y, p["q_down"], p["kv_down"], p["k_turned"]
        )
        (q,) = self.dense.products(
            "bsr,rhd->bshd", self.dense.norm(down_q, p["q_norm"], None), p["q"]
        )
        down = self.dense.norm(down, p["kv_norm"], None)
        k, v = self.dense.products("bsr,rhd->bshd", down, p["k"], p["v"])
        q_plain, q_turned = q[..., : low.plain], self.dense.rotary(q[..., low.plain :])
        shared = self.dense.rotary(turned[:, :, None, :])
        shared = jnp.broadcast_to(shared, (*k.shape[:3], low.turned))
        q = jnp.concatenate([q_plain, q_turned], axis=-1)
        k = jnp.concatenate([k, shared], axis=-1)
        more = q.shape[-1] - v.shape[-1]
        v = jnp.pad(v, ((0, 0),) * 3 + ((0, more),))
        return self.dense.attention(q, k, v, None)[..., : self.head]

    def route(self, y: Any, router: Any) -> Any:
        """Weights and numbers of each token's experts, and how unequal these are."""
        scores = jax.nn.softmax((y @ router).astype(jnp.float32), axis=-1)
        weights, chosen = jax.lax.top_k(scores, self.active)
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        picked = jax.nn.one_hot(chosen, self.experts, dtype=jnp.float32)
        share = jnp.mean(jnp.sum(picked, axis=2), axis=(0, 1)) / self.active
        uneven = self.experts * jnp.sum(share * jnp.mean(scores, axis=(0, 1)))
        return weights.astype(y.dtype), chosen, uneven

    @property
    def slots(self) -> int:
        """Slots of an expert for the tokens of one sequence."""
        return max(int(self.capacity * self.active * self.dense.seq / self.experts), 1)

    def places(self, chosen: Any) -> Any:
        """For each choice of a sequence its number among those of the same expert, [b, s k]."""
        flat = chosen.reshape(chosen.shape[0], -1)
        picked = jax.nn.one_hot(flat, self.experts, dtype=jnp.int32)
        return flat, jnp.sum(jnp.cumsum(picked, axis=1) * picked, axis=-1) - 1

    def held(self, name: str, x: Any) -> Any:
        """A value by its name, as it is; for programs with shardings of their own."""
        del name
        return x

    def by_onehot(self, y: Any, weights: Any, chosen: Any, p: Any) -> Any:
        """Products with masks."""
        _, place = self.places(chosen)
        slot = jax.nn.one_hot(place.reshape(chosen.shape), self.slots, dtype=y.dtype)
        expert = jax.nn.one_hot(chosen, self.experts, dtype=y.dtype)
        sent = jnp.einsum("bskc,bske->bsec", slot, expert)
        back = jnp.einsum("bskc,bske,bsk->bsec", slot, expert, weights)
        rows = jnp.einsum("bsec,bsm->becm", sent, self.held("tokens", y))
        rows = self.held("rows", self.held("packed", rows))
        up = jnp.einsum("becm,emf->becf", rows, p["up"])
        up = self.held("up", up * jax.nn.silu(jnp.einsum("becm,emf->becf", rows, p["gate"])))
        rows = self.held("back", jnp.einsum("becf,efm->becm", up, p["down"]))
        return jnp.einsum("bsec,becm->bsm", back, rows)

    def batched(self, spec: str, rows: Any, *matrices: Any) -> Any:
        """Products of slots with the matrices of their experts, in 8 bits if asked."""
        if self.dense.dtype == FP8:
            return self.dense.products(spec, rows, *matrices)
        return tuple(jnp.einsum(spec, rows, each) for each in matrices)

    def by_slots(self, y: Any, weights: Any, chosen: Any, p: Any) -> Any:
        """Rows scattered into slots; what is beyond them is dropped."""
        flat, place = self.places(chosen)
        count = self.experts * self.slots
        slot = jnp.where(place < self.slots, flat * self.slots + place, count)
        choices = flat.shape[1]

        def chosen_by(slot: Any) -> Any:
            """Choice that fills each slot, or none."""
            empty = jnp.full(count, choices, jnp.int32)
            return empty.at[slot].set(jnp.arange(choices, dtype=jnp.int32), mode="drop")

        filled: Any = jax.vmap(chosen_by)(slot) if self.gathers else None

        def sent(y: Any, slot: Any) -> Any:
            rows = jnp.zeros((count, y.shape[-1]), y.dtype)
            return rows.at[slot].set(jnp.repeat(y, self.active, axis=0), mode="drop")

        if self.gathers:
            to_slots = jax.vmap(partial(moved, self.active))
            rows = to_slots(self.held("tokens", y), filled // self.active, slot)
        else:
            rows = jax.vmap(sent)(self.held("tokens", y), slot)
        rows = rows.reshape(y.shape[0], self.experts, self.slots, -1)
        rows = self.held("rows", self.held("packed", rows))
        up, gate = self.batched("becm,emf->becf", rows, p["up"], p["gate"])
        (rows,) = self.batched("becf,efm->becm", self.held("up", up * jax.nn.silu(gate)), p["down"])
        rows = self.held("back", rows).reshape(y.shape[0], count, -1)
        if self.gathers:
            found = jax.vmap(partial(moved, 1))(rows, slot, filled)
        else:
            back = jax.vmap(lambda rows, slot: rows.at[slot].get(mode="fill", fill_value=0))
            found = back(rows, slot)
        found = found.reshape(*chosen.shape, -1)
        return jnp.einsum("bsk,bskm->bsm", weights, found)

    def by_ragged(self, y: Any, weights: Any, chosen: Any, p: Any) -> Any:
        """Rows of all sequences in the order of their experts."""
        flat, tokens = chosen.reshape(-1), y.reshape(-1, y.shape[-1])
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=self.experts).astype(jnp.int32)
        if self.gathers:
            inverse = jnp.argsort(order)
            rows = moved(self.active, tokens, order // self.active, inverse)
        else:
            rows = tokens[order // self.active]
        rows = self.held("sorted", rows)
        small = self.dense.dtype == FP8
        up, gate = grouped(small, rows, sizes, p["up"], p["gate"])
        up = self.held("inner", up * jax.nn.silu(gate))
        (rows,) = grouped(small, up, sizes, p["down"])
        if self.gathers:
            back: Any = moved(1, rows, inverse, order)
            return jnp.einsum("bsk,bskm->bsm", weights, back.reshape(*chosen.shape, -1))
        rows = rows * weights.reshape(-1)[order][:, None]
        return jnp.zeros_like(tokens).at[order // self.active].add(rows).reshape(y.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def moved(copies: int, x: Any, to: Any, back: Any) -> Any:
    """Rows `to` of x, zeros where there is none; `back` has the copies of each row in turn."""
    del copies, back
    return x.at[to].get(mode="fill", fill_value=0)


def _moved_forward(copies: int, x: Any, to: Any, back: Any) -> Any:
    return moved(copies, x, to, back), back


def _moved_backward(copies: int, back: Any, slope: Any) -> Any:
    each = slope.at[back].get(mode="fill", fill_value=0)
    if copies == 1:
        return each, None, None
    return each.reshape(-1, copies, slope.shape[-1]).sum(axis=1), None, None


moved.defvjp(_moved_forward, _moved_backward)


def grouped(fp8: bool, rows: Any, sizes: Any, *matrices: Any) -> Any:
    """Products of rows with matrices of their groups, in 8 bits if asked, gradients too."""
    if not fp8:
        return tuple(jax.lax.ragged_dot(rows, each, sizes) for each in matrices)
    return _in_8_bits(rows, sizes, matrices)


@jax.custom_vjp
def _in_8_bits(rows: Any, sizes: Any, matrices: Any) -> Any:
    return _forward(rows, sizes, matrices)[0]


def _of_8_bits(rows: Any, matrix: Any, sizes: Any, dtype: Any) -> Any:
    return jax.lax.ragged_dot(rows, matrix, sizes, preferred_element_type=jnp.dtype(dtype))


def _forward(rows: Any, sizes: Any, matrices: Any) -> Any:
    few = rows.astype(FP8)
    found = tuple(_of_8_bits(few, each.astype(FP8), sizes, rows.dtype) for each in matrices)
    return found, (few, sizes, matrices)


def _backward(kept: Any, slopes: Any) -> Any:
    few, sizes, matrices = kept
    dtype = slopes[0].dtype
    each = [slope.astype(FP8) for slope in slopes]
    parts = [
        _of_8_bits(slope, jnp.swapaxes(matrix, 1, 2).astype(FP8), sizes, dtype)
        for slope, matrix in zip(each, matrices, strict=True)
    ]
    numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    grads = tuple(
        jax.lax.ragged_dot_general(
            few, slope, sizes, numbers, preferred_element_type=jnp.dtype(dtype)
        )
        for slope in each
    )
    return sum(parts[1:], parts[0]), None, grads


_in_8_bits.defvjp(_forward, _backward)


def small(form: str, *, experts: int = 8, active: int = 2, shared: int = 0) -> Experts:
    """A model for numerics: an expert has as many slots as a sequence has tokens, or more."""
    dense = Transformer(1, 16, 4, 2, 0, True, 32, 16, dtype="float32", flash=False)
    return Experts(dense, 8, experts, active, shared, 24, form, capacity=float(experts))


MIXTRAL = Experts(Transformer(32, 4096, 32, 8, 0, True, 32000, 4096), 128, 8, 2, 0, 14336)
DEEPSEEK = Experts(Transformer(58, 7168, 128, 128, 0, True, 129280, 4096), 128, 256, 8, 1, 2048)
# all 61 layers have experts: the first three of the original have as many features as nine experts
DEEPSEEK_LATENT = Experts(
    Transformer(61, 7168, 128, 128, 0, True, 129280, 4096), 128, 256, 8, 1, 2048,
    latent=Latent(1536, 512, 128, 64),
)  # fmt: skip
# every second layer of the original attends to 128 tokens alone
GPT_OSS = Experts(Transformer(36, 2880, 64, 8, 0, True, 201088, 4096), 64, 128, 4, 0, 2880)
# of the model trained on 64 GB200 in marin's pull request 7981 (359.6 billion parameters)
GRUG = Experts(Transformer(48, 6144, 48, 48, 0, True, 128256, 4096), 128, 128, 4, 2, 3072)
QWEN_LARGE = Experts(Transformer(94, 4096, 64, 4, 0, True, 151936, 4096), 128, 128, 8, 0, 1536)
QWEN = Experts(Transformer(48, 2048, 32, 4, 0, True, 151936, 4096), 128, 128, 8, 0, 768)


def cut(model: Experts, layers: int, form: str) -> Experts:
    """The model with fewer layers, which recompute what they need, in some form."""
    return replace(model, dense=replace(model.dense, layers=layers, recompute="full"), form=form)
