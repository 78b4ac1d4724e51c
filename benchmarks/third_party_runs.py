# pyright: basic
"""Small versions of models that others wrote, run under their plans on eight devices of a host.

    python -m benchmarks third-party-runs [--quick] [--only gpt2]

Each model of `third_party.py` has small sizes here and plain gradient descent, whose state is the
gradient. As its best plan would be to do all of so little on every device, it is planned as fully
sharded data parallel (a flow with its fields split), and runs on eight devices of this machine,
with random arguments. `error` is the largest difference from `jax.jit` on one device of any leaf of
the results, which are parameters, gradients and loss, over the largest element of that leaf.

Sums in another order round differently, and a leaf may be nothing but rounding: the gradients of
biases of keys, which a softmax takes out, are. How much is rounding three more runs on one device
say, of arguments that are changed in their last bit, at random. `changed` is what the one that
changes that leaf least changes it by, over its largest element (another one may choose another
maximum); `of rounding` is the largest ratio of the plan's difference to such a change, of all
leaves, each of which is rounded at least once itself.
Libraries as in `third_party.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault(  # to optimise takes longer than to run
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
)

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.apart import row_apart
from benchmarks.third_party import LIBRARIES
from ir.trace import trace
from planner import plan

HERE = Path(__file__).resolve().parents[1]
CLUSTER = "8xh100"
EPSILON = float(np.finfo(np.float32).eps)
_WORDS = {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 64, "max_position_embeddings": 64, "shape": (8, 16)}  # fmt: skip
_HAIKU = {"batch": 16, "size": 32, "classes": 16}
_PAIR = {"vocab_size": 512, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
         "decoder_ffn_dim": 64, "shape": (8, 16)}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "resnet_18": _HAIKU, "resnet_50": _HAIKU, "mobilenet_v1": _HAIKU,
    "bert_base": _WORDS, "roberta_base": _WORDS | {"max_position_embeddings": 66},
    "gpt2": {"vocab_size": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, "shape": (8, 16)},
    "distilbert_base": {"vocab_size": 512, "dim": 32, "n_layers": 2, "n_heads": 4,
                        "hidden_dim": 64, "shape": (8, 16)},
    "vit_base": {k: v for k, v in _WORDS.items() if "vocab" not in k and "max" not in k}
    | {"shape": (8, 32, 32, 3), "image_size": 32, "patch_size": 8, "num_labels": 16},
    "gpt_neo_125m": {"vocab_size": 512, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                     "attention_types": [[["global", "local"], 1]], "window_size": 8,
                     "shape": (8, 16)},
    "electra_small": _WORDS | {"embedding_size": 16},
    "llama_160m": _WORDS,
    "bart_base": _PAIR,
    "whisper_tiny": _PAIR | {"max_source_positions": 32, "max_target_positions": 32,
                             "num_mel_bins": 16, "pad_token_id": 0, "bos_token_id": 1,
                             "eos_token_id": 2, "decoder_start_token_id": 3,
                             "begin_suppress_tokens": None},
    "cfd_flow": {"size": 64},
    "jraph_net": {"nodes": 64, "edges": 256, "width": 16, "rounds": 2},
    "diffrax_ode": {"batch": 16, "width": 32, "size": 8},
    "flowjax_coupling": {"batch": 16, "size": 8, "width": 16, "layers": 2},
    "nnx_qwen3": {"shape": (8, 16), "num_layers": 2, "vocab_size": 512, "embed_dim": 32,
                  "hidden_dim": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
                  "dtype": jnp.float32},
    "stable_diffusion": {"batch": 8, "words": 8, "sample_size": 16, "cross_attention_dim": 16,
                         "block_out_channels": (32, 32, 32, 32), "attention_head_dim": 4,
                         "layers_per_block": 1, "dtype": jnp.float32},
    "eqx_unet": {"batch": 8, "size": 32, "hidden_channels": 8, "num_levels": 2},
    "eqx_fno": {"batch": 8, "size": 32, "hidden_channels": 8, "num_modes": 4, "num_blocks": 2},
    "gymnax_ppo": {"envs": 16, "steps": 8, "width": 16},
    "nnx_ensemble": {"members": 8, "batch": 16, "size": 8, "width": 32},
}  # fmt: skip


def _argument(rng: np.random.Generator, type_: Any) -> Any:
    """A random argument: small numbers, indices below 8, keys."""
    if jnp.issubdtype(type_.dtype, jnp.floating):
        return jnp.asarray(rng.normal(size=type_.shape) * 0.2, type_.dtype)
    if type_.dtype == jnp.uint32:
        return jnp.asarray(rng.integers(0, 1 << 32, type_.shape, dtype=np.uint32))
    if type_.dtype == jnp.bool_:
        return jnp.asarray(rng.integers(0, 2, type_.shape).astype(bool))
    return jnp.asarray(rng.integers(0, 8, type_.shape), type_.dtype)


def _rounded(rng: np.random.Generator, x: Any) -> Any:
    """An argument whose numbers are changed in the last bit, or not."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    last = jnp.finfo(x.dtype).eps * rng.integers(-1, 2, x.shape)
    return (x * (1 + last)).astype(x.dtype)


def one(name: str) -> dict[str, Any]:
    """Plans and runs one model in this process."""
    target = next(rows[name] for rows in LIBRARIES.values() if name in rows)
    small = dict(SMALL[name])
    optimizer = {} if name == "cfd_flow" else {"optimizer": optax.sgd(1e-3, momentum=0.0)}
    fn, args, settings = target(**small, **optimizer)
    settings = {key: value for key, value in settings.items() if key != "donate_argnums"}
    if name == "cfd_flow":
        rows = trace(fn, *args).graph.inputs
        asked = {"pins": [(item.name, "[8,-]") for item in rows], "baselines": False}
    else:
        asked = {"baseline": "fsdp"}
    begun = time.process_time()
    p = plan(fn, *args, cluster=CLUSTER, mesh=(8,), **asked, **settings)
    spent_s = time.process_time() - begun
    rng = np.random.default_rng(0)
    given = jax.tree.map(lambda t: _argument(rng, t), args)
    found = p.compile()(*given)
    run = jax.jit(fn)
    wanted = run(*given)
    others = [run(*jax.tree.map(lambda x: _rounded(rng, x), given)) for _ in range(3)]
    leaves = [[np.asarray(x, float) for x in jax.tree.leaves(tree)] for tree in (found, *others)]
    error, changed, worst, of_rounding = 0.0, 0.0, "", 0.0
    for k, (path, y) in enumerate(jax.tree_util.tree_leaves_with_path(wanted)):
        y = np.asarray(y, float)
        assert np.isfinite(y).all(), f"{path} is not finite under jit"
        off, *rounding = (float(np.abs(tree[k] - y).max(initial=0.0)) for tree in leaves)
        largest = max(float(np.abs(y).max(initial=0.0)), float(np.finfo(np.float32).tiny))
        if off / largest > error:
            error, changed = off / largest, min(rounding) / largest
            worst = jax.tree_util.keystr(path, simple=True, separator="/")
        of_rounding = max(of_rounding, off / max(min(rounding), EPSILON * largest))
    return {
        "model": name, "ops": p.graph.count_nodes(), "plan_s": spent_s,
        "collectives": len(p.collectives), "layout": p.summary()["at_a_glance"]["layout"],
        "error": error, "worst": worst, "changed": changed, "of_rounding": of_rounding,
    }  # fmt: skip


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table; each model has a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks third-party-runs")
    parser.add_argument("--only", default="", help="models whose name contains this")
    only = parser.parse_known_args()[0].only
    head = ("model", "ops", "plan s", "collectives", "plan", "error", "changed", "of rounding")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    rows: list[dict[str, Any]] = []
    for name in list(SMALL)[:1] if quick else SMALL:
        if only not in name:
            continue
        row = row_apart("third_party_runs", name, cwd=HERE)
        if isinstance(row, str):
            print(f"| {name} | {row} |", flush=True)
            row = {"model": name, "failed": row}
        else:
            print(
                f"| {name} | {row['ops']:,} | {row['plan_s']:.1f} "
                f"| {row['collectives']} | {row['layout']} | {row['error']:.1e} "
                f"| {row['changed']:.1e} | {row['of_rounding']:.2g} |", flush=True,
            )  # fmt: skip
        rows.append(row)
    return rows


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1])))
