# pyright: basic
"""The module that `jax` writes runs alone, and compiles to the collectives of the plan."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from examples import gpt, llama, lstm, vit
from ir import Sharding
from ir.trace import Traced
from planner import Plan, PlanError, plan
from planner.emit.hlo import count_collectives
from planner.emit.jit import compile_plan
from planner.inspect.export.constrained import constrained, type_text
from planner.inspect.export.jax_module import rules
from tests.planner.inspect.export import plans
from tests.planner.inspect.export.fresh import run_fresh
from tests.planner.programs import slow_machine, struct

ROOT = Path(__file__).parents[4]

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import jax, numpy as np
import exported
from examples.{module} import {target} as target

fn, args, options = target()
step = exported.shard(fn, *args)
compiled = step.lower(*args).compile()
expected = jax.jit(fn)(*args)
placed = jax.device_put(args, exported.in_shardings(exported.make_mesh(), *args))
found = step(*placed)
for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert np.linalg.norm(a - b) <= {rtol} * np.linalg.norm(b), (a.shape, np.linalg.norm(a - b))
assert not {{"planner", "ir", "costmodel", "meshwright"}} & set(sys.modules)
print(compiled.as_text())
"""

EXAMPLES = {
    "gpt-scanned": (gpt.small_scanned, "gpt", "small_scanned", {"mesh": (2, 4)}),
    "gpt-written-out": (gpt.small, "gpt", "small", {}),
    "llama": (llama.small, "llama", "small", {"mesh": (2, 2, 2)}),
    "lstm": (lstm.small, "lstm", "small", {}),
    "vit": (vit.small, "vit", "small", {}),
    "amd": (gpt.small_scanned, "gpt", "small_scanned", {"cluster": "8xmi300x"}),
    "tpu": (gpt.small_scanned, "gpt", "small_scanned", {"cluster": "8xtpu-v5e"}),
}


def planned(make: Any, **settings: Any) -> Plan:
    fn, args, options = make()
    usual: Any = {"cluster": slow_machine(8), "baselines": False, "substitutions": False}
    return plan(fn, *args, **(usual | options | settings))


def collectives(text: str) -> dict[tuple[str, int, int], float]:
    return {(c.kind, c.group_size, c.bytes): c.count for c in count_collectives(text)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_module_runs_alone_with_the_collectives_of_the_plan(name: str, tmp_path: Path) -> None:
    make, module, target, settings = EXAMPLES[name]
    found = planned(make, **settings)
    found.export("jax", tmp_path / "exported.py")
    program = PROGRAM.format(root=str(ROOT), module=module, target=target, rtol=1e-3)
    text = run_fresh(program, tmp_path)
    assert isinstance(found.bound, Traced)
    annotated = compile_plan(found.bound, found._lowered, emission="constraints")
    expected = collectives(annotated.lower_as_planned().compile().as_text())
    assert len(expected) > 3
    assert collectives(text) == expected


def test_what_leaves_a_loop_in_another_state_is_constrained_as_a_stack() -> None:
    settings = {"cluster": "8xtpu-v5e", "mesh": (8,), "recompute": "written"}
    lowered = planned(gpt.small_scanned, **settings)._lowered
    flat = lowered.flat
    moved = {flat.links[r.passage.link].target for r in lowered.reshards if r.passage.link >= 0}
    stacks = [stack for stack, part in flat.stacked.items() if part in moved]
    assert stacks  # else this tests nothing
    rows = {(row.op, row.type, row.state) for row in constrained(lowered)}
    for stack in stacks:
        assert ("scan", type_text(flat.values[stack].type), lowered.states[stack]) in rows


def test_the_module_is_formatted_and_checked(tmp_path: Path) -> None:
    for kind in ("constant", "tensor-parallel"):
        plans.PLANS[kind]().export("jax", tmp_path / f"{kind}.py")
    for words in (["format", "--check", "--line-length", "88"], ["check"]):
        subprocess.run([sys.executable, "-m", "ruff", *words, "--isolated", tmp_path], check=True)


@pytest.mark.parametrize("kind", plans.PLANS)
def test_rules_give_the_specs_of_the_plan(kind: str) -> None:
    found = plans.PLANS[kind]()
    written = rules(found.input_shardings())
    assert len(written) <= len(found.input_shardings()) + 1
    for path, state in found.input_shardings().items():
        spec = next(spec for pattern, spec in written if fnmatchcase(path, pattern))
        entries = [axes[0] if len(axes) == 1 else axes or None for axes in state.dims]
        while entries and entries[-1] is None:
            entries.pop()
        assert list(eval(spec, {"P": lambda *given: given})) == entries


def test_rules_join_layers_and_tell_apart_what_differs() -> None:
    split, other = Sharding((("x",), ())), Sharding(((), ("x",)))
    layers = {f"params/layers/{n}/up": split for n in range(24)}
    assert rules(layers) == [("*/up", 'P("x")'), ("*", "P()")]
    odd = {"params/layers/3/up": other, "params/a[0]/b": Sharding(((), ()))}
    assert rules({**layers, **odd})[0] == ("params/layers/0/up", 'P("x")')
    assert rules(odd) == [("*/up", 'P(None, "x")'), ("*", "P()")]


CHANGED = """
import jax, jax.numpy as jnp
import exported

def step(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]

def with_another_product(params, x):
    return step(params, x) + x @ params["up"] @ params["down"]

f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
params = {"up": f32(16, 64), "down": f32(64, 16)}
exported.shard(step, params, f32(8, 16)).lower(params, f32(8, 16))
for fn, args in (
    (with_another_product, (params, f32(8, 16))), (step, (params, f32(16, 16))),
    (step, (params, f32(8, 16), f32())), (lambda *a: (step(*a), 0), (params, f32(8, 16))),
):
    try:
        exported.shard(fn, *args).lower(*args)
    except ValueError as error:
        print(error)
    else:
        raise SystemExit("a changed program was not refused")
"""


def test_a_changed_function_is_refused(tmp_path: Path) -> None:
    params = {"up": struct(16, 64), "down": struct(64, 16)}
    found = plan(
        lambda params, x: jnp.tanh(x @ params["up"]) @ params["down"], params, struct(8, 16),
        cluster=slow_machine(4), baselines=False, substitutions=False,
    )  # fmt: skip
    found.export("jax", tmp_path / "exported.py")
    said = run_fresh(CHANGED, tmp_path, devices=4)
    assert "results of dot_general of type float32[8,64], it was planned with" in said
    assert said.count("those planned") == 2
    assert "planned with 1" in said


REFUSED = {
    "layered": "one of 2 micro-batches that Meshwright wrote",
    "trained": "it rewrites the program",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_programs_that_are_not_the_users_own_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=REFUSED[kind]):
        plans.PLANS[kind]().export("jax", tmp_path / "exported.py")
    assert list(tmp_path.iterdir()) == []
