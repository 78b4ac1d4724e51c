# pyright: basic
"""State of an optimizer and parameters on the host: values, memory, price, files and exports."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import FROM_HOST, HOST_COPIES, TO_HOST, check
from ir.analysis import flatten, host_values
from ir.trace import Traced, trace
from planner import Plan, PlanError, load, plan, verify
from planner.emit import compile_plan
from planner.emit.compilers import has_plugin
from planner.sharding.host_limit import USABLE
from planner.sharding.recompute.host_states import parameters_of, states_of, with_states_on_host
from planner.training.step import build_step
from tests.planner.emit.plans import LINE, lowered, random_decisions

from .random_steps import whole_on_host

LAYERS = 4
OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
)
SETTINGS: dict[str, Any] = {
    "cluster": "8xh100", "optimizer": optax.adamw(1e-3), "mesh": (8,), "microbatches": 1,
    "baselines": False, "substitutions": False, "padding": False, "pipeline": "off",
    "recompute": "written",
}  # fmt: skip


def loss(params: Any, batch: jax.Array) -> jax.Array:
    def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return h + jnp.tanh(h @ w["a"] * w["s"]) @ w["b"], None

    x, _ = jax.lax.scan(layer, params["embed"][batch], params["layers"])
    return jnp.mean((x @ params["embed"].T) ** 2)


def parameters(width: int, inner: int, layers: int = LAYERS) -> Any:
    shapes = {
        "embed": (64, width),
        "layers": {
            "a": (layers, width, inner), "b": (layers, inner, width), "s": (layers, inner),
        },
    }  # fmt: skip
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, "float32"), shapes, **is_shape)


LARGE = parameters(4096, 4096, 16)


@cache
def step(microbatches: int) -> tuple[Any, Traced]:
    """The step as it is written, and traced."""
    batch = jax.ShapeDtypeStruct((16, 8), "int32")
    built = build_step(loss, parameters(32, 64), batch, OPTIMIZER, microbatches=microbatches)
    args = parameters(32, 64), built.opt_state_structs, batch
    roles = "parameter", "optimizer-state", "batch"
    return built, trace(built.fn, *args, donate_argnums=(0, 1), roles=roles)


def arguments(built: Any) -> tuple[Any, Any, Any]:
    def drawn(x: Any) -> jax.Array:
        return 0.1 * jax.random.normal(jax.random.key(len(x.shape)), x.shape)

    params = jax.tree.map(drawn, parameters(32, 64))
    return params, built.init(params), jax.random.randint(jax.random.key(1), (16, 8), 0, 64)


def test_only_what_the_optimizer_alone_reads_is_state() -> None:
    names = [one.name for one in states_of(step(1)[1])]
    assert len(names) == 8
    assert all("mu" in name or "nu" in name for name in names)


def test_stacks_are_updated_by_slices_and_parameters_in_place() -> None:
    _, traced = step(1)
    found = with_states_on_host(traced, [one.argument for one in states_of(traced)])
    graph = found.graph
    check(graph, after="states on the host")
    away = host_values(flatten(graph))
    (loop,) = [n for n in graph.nodes if any(m.op == TO_HOST for b in n.bodies for m in b.nodes)]
    ops = [node.op for node in loop.bodies[0].nodes]
    assert ops.count(FROM_HOST) == ops.count(TO_HOST) == 6
    assert ops.count("dynamic_update_slice") == loop.attr("num_carry") == 3
    # the embedding is no stack of layers
    assert [n.op for n in graph.nodes if n.op in HOST_COPIES] == [FROM_HOST] * 2 + [TO_HOST] * 2
    assert len(away.intersection(flatten(graph).inputs)) == 8
    # what the optimizer alone reads of gradients is made slice by slice too
    large = [n for n in graph.nodes if any(t.shape[:1] == (LAYERS,) for t in n.outputs)]
    assert not {n.op for n in large} & {"div", "integer_pow", "select_n", "sqrt"}


def test_parameters_are_the_stacks_that_loops_over_layers_read() -> None:
    for microbatches in (1, 2):
        traced = step(microbatches)[1]
        assert [one.name for one in parameters_of(traced)] == [
            "params/layers/a", "params/layers/b", "params/layers/s"
        ]  # fmt: skip


def norms(w: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """A step that needs the norm of a whole stack, and writes another one whole."""
    h, _ = jax.lax.scan(lambda h, u: (jnp.tanh(h @ u["a"] @ u["b"]), None), x, w)
    grads = jax.grad(lambda w: jnp.mean(jax.lax.scan(
        lambda h, u: (jnp.tanh(h @ u["a"] @ u["b"]), None), x, w)[0] ** 2)
    )(w)  # fmt: skip
    size = jnp.sqrt(jnp.sum(w["a"] ** 2))
    return {"a": w["a"] - 0.1 * size * grads["a"], "b": jnp.cumsum(w["b"] - grads["b"], 0)}, h


def test_parameters_that_are_also_read_as_a_whole_stay_on_the_devices() -> None:
    stack = jax.ShapeDtypeStruct((LAYERS, 16, 16), "float32")
    x = jax.ShapeDtypeStruct((4, 16), "float32")
    traced = trace(norms, {"a": stack, "b": stack}, x, donate_argnums=(0,))
    assert parameters_of(traced) == ()


def test_layers_fetch_their_slices_in_both_passes_and_the_update_once_more() -> None:
    for microbatches, depth in ((1, 1), (2, 2)):
        traced = step(microbatches)[1]
        away = [one.argument for one in parameters_of(traced)]
        graph = with_states_on_host(traced, away).graph
        check(graph, after="parameters on the host")
        flat = flatten(graph)
        assert len(host_values(flat).intersection(flat.inputs)) == len(away) == 3
        back = [op for op in flat.ops if op.node.op == FROM_HOST]
        assert [op.node.outputs[0].shape[0] for op in back].count(32) == 3  # of `a`
        assert {op.weight for op in back} == {LAYERS, LAYERS * microbatches ** (depth - 1)}
        assert sum(op.node.op == TO_HOST for op in flat.ops) == 3


CASES = [
    (1, "shard_map", None, True),
    *(
        pytest.param(m, how, n, params, marks=pytest.mark.exhaustive)
        for m, how, n, params in [
            (1, "shard_map", None, False), (2, "shard_map", 3, True), (2, "shard_map", 0, True),
            (1, "constraints", None, True), (2, "constraints", 5, False),
        ]
    ),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Some donated buffers")  # random shardings are not tied
@pytest.mark.parametrize(("microbatches", "emission", "count", "params"), CASES)
def test_values_are_those_of_the_step(
    microbatches: int, emission: str, count: int | None, params: bool
) -> None:
    built, traced = step(microbatches)
    states = [one.argument for one in states_of(traced)][:count]
    states += [one.argument for one in parameters_of(traced)] if params else []
    found = with_states_on_host(traced, states)
    decisions = whole_on_host(found.graph, random_decisions(found.graph, LINE, 1))
    run = compile_plan(found, lowered(found, decisions), emission=emission)
    weights, state, batch = arguments(built)
    expected = jax.jit(built.fn)(*jax.jit(built.fn)(weights, state, batch)[:2], batch)
    once = run(weights, state, batch)
    twice = run(once[0], once[1], batch)
    for ours, theirs in zip(jax.tree.leaves(twice), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-4, atol=2e-6)
    kinds = [x.sharding.memory_kind for x in jax.tree.leaves(once[:2])]
    assert kinds.count("pinned_host") == len(states)


@cache
def planned(share: float | None) -> Plan:
    """A plan within what one without a limit takes, less a share of the optimizer's state."""
    batch = jax.ShapeDtypeStruct((16, 8), "int32")
    limit = 10**12
    if share is not None:
        limit = int(planned(None).peak_bytes - share * 2 * 4 * 2 * 16 * 4096 * 4096 / 8)
    return plan(loss, LARGE, batch, memory_bytes=limit, **SETTINGS)


def test_where_a_step_does_not_fit_its_state_waits_on_the_host(tmp_path: Path) -> None:
    free, found = planned(None), planned(0.5)
    assert free.program.host_states == ()
    assert found.program.host_states
    assert found.peak_bytes <= found.program.limit_bytes < free.peak_bytes
    assert found.step_s > free.step_s
    copies = found.analysed.account.host_copies
    sent = sum(c.nbytes for c in copies if c.op == TO_HOST)
    assert sent == sum(c.nbytes for c in copies if c.op == FROM_HOST)
    assert found.program.host_bytes == 2 * sent  # this state and the next
    assert "on the host  between steps: opt_state" in str(found)
    with pytest.raises(PlanError, match="does not fit"):
        plan(
            loss, LARGE, jax.ShapeDtypeStruct((16, 8), "int32"),
            memory_bytes=int(found.program.limit_bytes), offload="never", **SETTINGS,
        )  # fmt: skip
    found.export("deepspeed", tmp_path / "ds.json")
    settings = json.loads((tmp_path / "ds.json").read_text())
    assert settings["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    found.export("maxtext", tmp_path / "run.yml")
    assert "optimizer_memory_host_offload: True" in (tmp_path / "run.yml").read_text()
    found.export("megatron", tmp_path / "megatron.json")
    words = json.loads((tmp_path / "megatron.json").read_text())["arguments"]
    states = [n for n, role in enumerate(found.program.roles) if role == "optimizer-state"]
    sizes = [found.analysed.graph.inputs[n].type.nbytes for n in states]
    away = [found.analysed.graph.inputs[n].type.nbytes for n in found.program.host_states]
    share = float(words[words.index("--optimizer-offload-fraction") + 1])
    assert share == pytest.approx(sum(away) / sum(sizes), abs=1e-4)
    assert {"--optimizer-cpu-offload", "--use-distributed-optimizer"} <= {*words}
    titan = found.export("torchtitan", tmp_path / "titan.toml")
    assert any("of the optimizer's state; torchtitan's" in note for note in titan.notes)


def test_more_memory_is_never_slower_and_takes_less_of_the_host() -> None:
    tight, loose = planned(0.5), planned(0.2)
    assert loose.step_s <= tight.step_s
    assert loose.program.host_bytes <= tight.program.host_bytes
    assert loose.lower_bound_s <= loose.step_s


def on_hosts_of(nbytes: float, tmp_path: Path) -> Plan:
    """As `planned(0.5)`, on a machine whose plans may take so much of the host for each device."""
    path = tmp_path / "lab.yaml"
    size = int(nbytes / USABLE * 8) + 8
    path.write_text(f"device: h100\ndevices: 8\nhost_memory: {size}\n")
    batch, limit = jax.ShapeDtypeStruct((16, 8), "int32"), int(planned(0.5).program.limit_bytes)
    ask: dict[str, Any] = SETTINGS | {"cluster": path}
    return plan(loss, LARGE, batch, memory_bytes=limit, **ask)


def test_no_plan_takes_more_than_the_host_has(tmp_path: Path) -> None:
    found = planned(0.5).program
    assert on_hosts_of(found.host_bytes, tmp_path).program.host_states == found.host_states
    with pytest.raises(PlanError, match="does not fit") as caught:
        on_hosts_of(found.host_bytes / 2, tmp_path)
    assert "memory of the hosts is too small" in caught.value.message
    assert "host_memory" in caught.value.remedy or "hosts of more memory" in caught.value.remedy


def test_a_saved_plan_has_the_same_state_on_the_host(tmp_path: Path) -> None:
    found = planned(0.5)
    found.save(tmp_path / "plan.json")
    batch = jax.ShapeDtypeStruct((16, 8), "int32")
    again = load(tmp_path / "plan.json").bind(loss, LARGE, batch, optimizer=SETTINGS["optimizer"])
    assert again.program.host_states == found.program.host_states != ()
    kinds = [s.memory_kind for s in jax.tree.leaves(again.compile().in_shardings)]
    assert kinds.count("pinned_host") == len(found.program.host_states)


def test_where_state_on_the_host_is_not_enough_parameters_follow(tmp_path: Path) -> None:
    found = planned(1.25)
    roles = [found.program.roles[a] for a in found.program.host_states]
    assert roles.count("parameter")
    assert roles.count("optimizer-state") == 4  # those of the large stacks
    assert found.peak_bytes <= found.program.limit_bytes < planned(0.95).peak_bytes
    assert found.step_s > planned(0.95).step_s
    copies = found.analysed.account.host_copies
    sent, back = (sum(c.nbytes for c in copies if c.op == op) for op in (TO_HOST, FROM_HOST))
    assert found.program.host_bytes == 2 * sent
    fetched = sum(
        found.analysed.graph.inputs[a].type.nbytes / 8
        for a in found.program.host_states if found.program.roles[a] == "parameter"
    )  # fmt: skip
    assert back == sent + 2 * fetched  # both passes, beside the update
    assert "limited by copies to and from the memory of the host" in str(found)
    found.export("maxtext", tmp_path / "run.yml")
    assert "parameter_memory_host_offload: True" in (tmp_path / "run.yml").read_text()
    exported = found.export("deepspeed", tmp_path / "ds.json")
    assert any("parameters on the host" in note for note in exported.notes)
    found.save(tmp_path / "plan.json")
    batch = jax.ShapeDtypeStruct((16, 8), "int32")
    again = load(tmp_path / "plan.json").bind(loss, LARGE, batch, optimizer=SETTINGS["optimizer"])
    assert again.program.host_states == found.program.host_states
    kinds = [s.memory_kind for s in jax.tree.leaves(again.compile().in_shardings)]
    assert kinds.count("pinned_host") == len(roles)


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", [0.5, 1.25, 1.45])
@pytest.mark.skipif(not has_plugin(), reason="XLA's GPU compiler is not installed")
def test_xla_holds_the_bytes_that_are_predicted(share: float) -> None:
    found = verify(planned(share), compiler="gpu-aot")
    assert found.compiled.host_bytes == found.predicted_host_bytes > 0
    assert found.compiled.peak_bytes == pytest.approx(found.predicted_peak_bytes, rel=0.05)
