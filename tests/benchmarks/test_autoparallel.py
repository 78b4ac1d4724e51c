from __future__ import annotations

import math
from itertools import product

import pytest

from benchmarks.autoparallel import AXES, LAYER, OUTSIDE, entries, pins
from benchmarks.models import SIZES

MESH = (8, 8)
LLAMA = SIZES["llama-8b"]
M, H, G, F, V = LLAMA.hidden, LLAMA.heads, LLAMA.kv_heads, LLAMA.ffn, LLAMA.vocab
SHAPES: dict[str, tuple[int, ...]] = {
    "q": (M, H, M // H), "k": (M, G, M // H), "v": (M, G, M // H), "o": (H, M // H, M),
    "gate": (M, F), "up": (M, F), "down": (F, M), "attn_norm": (M,), "mlp_norm": (M,),
    "tok": (V, M), "norm": (M,), "head": (M, V), "tokens": (16, 8192),
}  # fmt: skip
# torch.nn.Linear(in, out) keeps (out, in): from the constructors in the peer's model
THEIRS = {
    "attention.wq": (M, M), "attention.wk": (G * M // H, M), "attention.wv": (G * M // H, M),
    "attention.wo": (M, M), "feed_forward.w1": (F, M), "feed_forward.w3": (F, M),
    "feed_forward.w2": (M, F), "attention_norm": (M,), "ffn_norm": (M,),
    "tok_embeddings": (V, M), "norm": (M,), "output": (V, M),
}  # fmt: skip
TABLE = {**LAYER, **OUTSIDE}


@pytest.mark.parametrize("name", TABLE)
def test_dimensions_are_those_of_the_peer(name: str) -> None:
    ours, made_of = TABLE[name]
    sizes = tuple(math.prod(SHAPES[ours][d] for d in dims) for dims in made_of)
    assert sizes == THEIRS[name]
    assert sorted(d for dims in made_of for d in dims) == list(range(len(SHAPES[ours])))


@pytest.mark.parametrize("name", TABLE)
def test_every_placement_keeps_axis_and_bytes(name: str) -> None:
    ours, made_of = TABLE[name]
    for placed in product((None, *range(len(made_of))), repeat=2):
        said = entries(placed, made_of, SHAPES[ours], MESH)
        for axis, theirs in zip(AXES, placed, strict=False):
            on = [d for d, text in enumerate(said) if axis in text.split("*")]
            assert len(on) == (theirs is not None)
            assert theirs is None or on[0] in made_of[theirs]
        for size, text in zip(SHAPES[ours], said, strict=True):
            assert size % math.prod(8 for axis in text.split("*") if axis != "-") == 0


def all_placed(layers: int, *, last: int = 0) -> dict[str, list[int | None]]:
    placed: dict[str, list[int | None]] = {f"{name}.weight": [0, 0] for name in OUTSIDE}
    for i, name in product(range(layers), LAYER):
        odd = i == layers - 1 and name == "feed_forward.w1"
        key = f"layers.{i}._checkpoint_wrapped_module.{name}.weight"
        placed[key] = [0, last if odd else 0]
    return placed


def test_layers_alike_are_one_pin() -> None:
    found, unrolled = pins(all_placed(3), [0, None], SHAPES, MESH)
    said = dict(found)
    assert not unrolled
    assert len(said) == len(TABLE) + 1
    assert said["*/layers/gate"] == "[-,-,x*y]"
    assert said["*/layers/q"] == "[-,-,x,y]"  # 32 heads: eight ways, then their 128 dimensions
    assert said["*/head"] == "[-,x*y]"
    assert said["batch/*"] == "[x,-]"


def test_layers_that_differ_are_pinned_one_by_one() -> None:
    found, unrolled = pins(all_placed(3, last=1), [0, None], SHAPES, MESH)
    said = dict(found)
    assert unrolled
    assert said["*/layers/1/gate"] == "[-,x*y]"
    assert said["*/layers/2/gate"] == "[y,x]"


def test_unknown_parameters_and_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameter of ours"):
        pins({"layers.0.attention.bias": [0, 0]}, [0, None], SHAPES, MESH)
    with pytest.raises(ValueError, match="divides by 3"):
        entries([0], ((0,),), (8,), (3,))
