# pyright: basic
"""Places where each rule of the catalogue applies in traced models, with equal results.

    python -m benchmarks rule-places [--quick] [--only NAME,NAME]

Every rule of one device is applied at all of its places, one rule at a time, in training steps of
the small examples, of TASO's models and of the families in `rule_models`; the step then runs beside
the original on random numbers (TASO's models only count places, except those of a few ops). Rules
that split values over devices are strategies of the planner: `meshwright rules
verify` proves them and `tests/substitutions/derive.py` derives the parallelisms from them.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rule_models import FAMILIES
from benchmarks.taso_models import MODELS, step_of
from ir import IRError
from ir.evaluate import plain_program
from ir.trace import Traced, trace
from planner.cli.target import load_target
from planner.sharding.rewrite.retrace import retraced
from substitutions import Draft, apply, draft_of, find, patterns

EXAMPLES = (
    "gpt:small", "llama:small", "lstm:small", "moe:small", "recommender:small", "unet:small",
    "vit:small", "wide_resnet:small", "encoder_decoder:small",
)  # fmt: skip


def models(quick: bool) -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, step, arguments, and whether it is run."""
    for name, make in FAMILIES.items():
        loss, params, batch = make()
        yield name, jax.value_and_grad(loss), (params, batch), True
    for name in () if quick else EXAMPLES:
        file, _, target = name.partition(":")
        loaded = load_target(f"examples/{file}.py:{target}")
        yield name, loaded.fn, loaded.args, True
    for name in () if quick else MODELS:
        fn, args = step_of(name, train=True)
        yield f"taso/{name}", fn, args, False


def everywhere(draft: Draft, rule: str) -> tuple[Draft, int]:
    """A rule at all of its places, level by level of loops."""
    places, total = find(draft, [rule]), 0
    for depth in sorted({len(place.prefix) for place in places}):
        draft, count = apply(draft, [p for p in places if len(p.prefix) == depth])
        total += count
        places = find(draft, [rule]) if count else places
    return draft, total


def arrays(tree: Any) -> Any:
    """Random arrays; whole numbers are small, so that they are rows of any table."""
    rng = np.random.default_rng(0)

    def one(s: Any) -> Any:
        if jnp.issubdtype(s.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if not jnp.issubdtype(s.dtype, jnp.floating):
            return jnp.asarray(rng.integers(0, 2, s.shape), s.dtype)
        return jnp.asarray(np.abs(rng.standard_normal(s.shape)) * 0.3, s.dtype)

    return jax.tree.map(one, tree)


def outcome(traced: Traced, values: Any) -> list[np.ndarray]:
    """Results of a program as arrays of 64 bits."""
    run = jax.jit(plain_program(traced.program))
    found = run(*traced.program.consts, *jax.tree.leaves(values))
    return [
        np.asarray(x, np.float64) for x in found if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    ]


def differs(before: list[np.ndarray], after: list[np.ndarray]) -> float:
    """Largest difference, relative to the largest element of the same array."""
    pairs = zip(before, after, strict=True)
    both = [(a, b) for a, b in pairs if a.size and np.isfinite(a).all()]
    return max(
        (float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-3)) for a, b in both), default=0
    )


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints a row for every rule and returns the places."""
    only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else None
    jax.config.update("jax_disable_most_optimizations", True)
    rows: list[dict[str, Any]] = []
    for name, fn, args, run in models(quick):
        if only and name not in only:
            continue
        traced = trace(fn, *args)
        draft, values = draft_of(traced.graph), arrays(args) if run else None
        before = outcome(traced, values) if run else []
        kinds = collections.Counter(place.rule for place in find(draft, patterns()))
        for rule in kinds:
            after, count = everywhere(draft, rule)
            row: dict[str, Any] = {"rule": rule, "model": name, "places": count}
            if run and count:
                try:
                    row["differs"] = differs(before, outcome(retraced(traced, after), values))
                except IRError as error:
                    row["error"] = str(error)
            rows.append(row)
        said = [r.get("differs", 0.0) for r in rows if r["model"] == name]
        print(f"{name}: {len(said)} rules, differs by {max(said, default=0.0):.1e}", flush=True)
    print("\n| rule | places | models | differs |\n|---|---|---|---|")
    for rule in patterns():
        mine = [r for r in rows if r["rule"] == rule and r["places"]]
        worst = max((r.get("differs", 0.0) for r in mine), default=0.0)
        names = ", ".join(r["model"] for r in mine[:4]) + (", ..." if len(mine) > 4 else "")
        print(f"| {rule} | {sum(r['places'] for r in mine)} | {names} | {worst:.0e} |", flush=True)
    return rows
