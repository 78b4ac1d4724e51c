# pyright: basic
"""What a plan keeps, computes again and leaves on the host, in the settings of other frameworks."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
import yaml
from jax.ad_checkpoint import checkpoint_name as named

from benchmarks.published_model import Transformer, adam
from examples import moe
from planner import plan
from planner.inspect.export.kept import AGAIN, FULL, HOST, KEPT, PARTIAL, SELECTIVE, kept
from tests.planner.programs import struct

ROWS, SEQ, HEADS, HEAD, FFN, LAYERS = 4, 16, 2, 8, 48, 2
WIDTH = HEADS * HEAD
# part of a layer -> the name that MaxText gives its result, which is also that of the tests' models
NAMES = {
    "query": "query_proj", "key": "key_proj", "value": "value_proj", "attention": "context",
    "attention-out": "out_proj", "mlp-gate": "mlpwi_0", "mlp-up": "mlpwi_1",
}  # fmt: skip
ALL = tuple(NAMES.values())
SHAPES = {
    "q": (WIDTH, HEADS, HEAD), "k": (WIDTH, HEADS, HEAD), "v": (WIDTH, HEADS, HEAD),
    "o": (HEADS, HEAD, WIDTH), "gate": (WIDTH, FFN), "up": (WIDTH, FFN), "down": (FFN, WIDTH),
}  # fmt: skip


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def layer(x, w):
    y = norm(x)
    q, k, v = (
        named(jnp.einsum("bsm,mhd->bshd", y, w[name[0]]), name)
        for name in ("query_proj", "key_proj", "value_proj")
    )
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
    core = named(jnp.einsum("bhqk,bkhd->bqhd", scores, v), "context")
    x = x + named(jnp.einsum("bshd,hdm->bsm", core, w["o"]), "out_proj")
    y = norm(x)
    gate, up = named(y @ w["gate"], "mlpwi_0"), named(y @ w["up"], "mlpwi_1")
    return x + (jax.nn.silu(gate) * up) @ w["down"], None


def model(policy=None, *, scan: bool = True, checkpoint: bool = True):
    def loss(params, batch):
        body = jax.checkpoint(layer, policy=policy) if checkpoint else layer
        x = batch["x"]
        if scan:
            x, _ = jax.lax.scan(body, x, params)
        else:
            for n in range(LAYERS):
                x, _ = body(x, jax.tree.map(lambda leaf, n=n: leaf[n], params))
        return jnp.mean((x - batch["y"]) ** 2)

    return loss


def planned(loss, recompute: str = "written", **settings):
    params = {name: struct(LAYERS, *shape) for name, shape in SHAPES.items()}
    batch = {name: struct(ROWS, SEQ, WIDTH) for name in "xy"}
    return plan(
        loss, params, batch, optimizer=optax.sgd(0.1), recompute=recompute, pipeline="off",
        **{"cluster": "2xh100", "mesh": (2,), "baselines": False, "substitutions": False,
           "attention": "written", **settings},
    )  # fmt: skip


def exported(found, name: str, folder: Path) -> str:
    found.export(name, folder / "out")
    return (folder / "out").read_text(encoding="utf-8")


SAVED = {
    "nothing": (), "queries": ALL[:3], "every-second": ("query_proj", "value_proj", "mlpwi_0"),
    "all-but-attention": tuple(name for name in ALL if name != "context"), "all": ALL,
}  # fmt: skip


@pytest.mark.parametrize("scan", [True, False], ids=["loop", "written-out"])
@pytest.mark.parametrize("saved", SAVED.values(), ids=[*SAVED])
def test_what_a_policy_saves_is_read_off_the_plan(saved, scan: bool, tmp_path: Path) -> None:
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    found = planned(model(policy, scan=scan))
    state = kept(found.analysed)
    want = {part: KEPT if name in saved else AGAIN for part, name in NAMES.items()}
    assert {**state.parts} == {**want, "mlp-out": KEPT}
    again = [part for part, its in want.items() if its == AGAIN]
    # scores have no name, so that they are computed again whatever is saved
    kind = SELECTIVE if again in ([], ["attention"]) else PARTIAL
    assert state.kind == (FULL if not saved else kind)
    assert state.attention_again
    settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
    if settings["remat_policy"] == "custom":  # the policy that MaxText makes of it is the program's
        assert {name for name in ALL if settings[name] == "device"} == set(saved)
    else:
        assert (settings["remat_policy"], saved) == ("full", ())


def test_attention_that_is_kept_beside_all_else_is_named(tmp_path: Path) -> None:
    policy = jax.checkpoint_policies.save_only_these_names("context")
    found = planned(model(policy))
    assert kept(found.analysed).spared == {"attention"}
    settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
    assert settings["remat_policy"] == "custom"
    assert [name for name in ALL if settings[name] == "device"] == ["context"]
    for name in ("megatron", "torchtitan"):
        notes = found.export(name, tmp_path / name).notes
        assert any(("attention" in note and "keep" in note) or "kept: attention" in note
                   for note in notes), notes  # fmt: skip


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "deepspeed"])
def test_light_operations_that_are_computed_again_are_named(name: str, tmp_path: Path) -> None:
    found = planned(model(jax.checkpoint_policies.dots_saveable))
    assert any("light operations" in note for note in found.export(name, tmp_path / "out").notes)


def test_stages_that_compute_again_say_so(tmp_path: Path) -> None:
    params = {name: struct(4, *shape) for name, shape in SHAPES.items()}
    batch = {name: struct(8, SEQ, WIDTH) for name in "xy"}
    found = plan(
        model(jax.checkpoint_policies.nothing_saveable), params, batch, pipeline=2,
        schedules=("1f1b",), optimizer=optax.sgd(0.1), cluster="4xh100", baselines=False,
        substitutions=False, attention="written", microbatches=4,
    )  # fmt: skip
    found.export("megatron", tmp_path / "whole")
    assert "--recompute-granularity" in (tmp_path / "whole").read_text(encoding="utf-8")
    titan = tomllib.loads(exported(found.stage_plans[0], "torchtitan", tmp_path))
    assert titan["activation_checkpoint"]["mode"] == "full"


def test_what_a_policy_sends_to_the_host_is_read_off_the_plan(tmp_path: Path) -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["out_proj", "mlpwi_0", "mlpwi_1"],
        names_which_can_be_offloaded=["query_proj", "key_proj", "value_proj"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip
    found = planned(model(policy), offload="auto")
    state = kept(found.analysed)
    assert state.those(HOST) == {"query", "key", "value"}
    assert state.those(AGAIN) == {"attention"}
    settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
    assert settings["remat_policy"] == "custom"
    assert [name for name in ALL if settings[name] == "offload"] == [*ALL[:3]]
    words = json.loads(exported(found, "megatron", tmp_path))["arguments"]
    at = words.index("--offload-modules")
    assert words[at + 1] == "core_attn"  # whose inputs they are
    assert "--fine-grained-activation-offloading" in words
    bridge = yaml.safe_load(exported(found, "megatron-bridge", tmp_path))["model"]
    assert bridge["offload_modules"] == ["core_attn"]
    assert bridge["recompute_modules"] == ["core_attn"]
    for name in ("torchtitan", "deepspeed"):  # which cannot say it: the file or its notes do
        notes = found.export(name, tmp_path / name).notes
        assert any("on the host: query, key, value" in note for note in notes)


@pytest.mark.parametrize("scan", [True, False], ids=["loop", "written-out"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_the_planner_computes_again_is_in_every_setting(
    recompute: str, scan: bool, tmp_path: Path
) -> None:
    if recompute == "full" and not scan:
        pytest.skip("layers that are written out are not all cut at the same places")
    found = planned(model(checkpoint=False, scan=scan), recompute)
    assert kept(found.analysed).kind == recompute
    titan = tomllib.loads(exported(found, "torchtitan", tmp_path))["activation_checkpoint"]
    assert titan["mode"] == recompute
    words = json.loads(exported(found, "megatron", tmp_path))["arguments"]
    bridge = yaml.safe_load(exported(found, "megatron-bridge", tmp_path))["model"]
    deepspeed = json.loads(exported(found, "deepspeed", tmp_path))
    if recompute == "none":
        assert "--recompute-granularity" not in words
        assert "recompute_granularity" not in bridge
        assert "activation_checkpointing" not in deepspeed
        return
    assert words[words.index("--recompute-granularity") + 1] == recompute
    assert bridge["recompute_granularity"] == recompute
    assert "activation_checkpointing" in deepspeed
    if recompute == "selective":
        assert words[words.index("--recompute-modules") + 1] == "core_attn"
        settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
        assert [name for name in ALL if settings[name] == "remat"] == ["context"]


def test_what_no_module_says_is_computed_again_and_named(tmp_path: Path) -> None:
    policy = jax.checkpoint_policies.save_only_these_names("query_proj", "mlpwi_0")
    written = planned(model(policy)).export("megatron", tmp_path / "out")
    data = json.loads((tmp_path / "out").read_text(encoding="utf-8"))
    assert data["arguments"][data["arguments"].index("--recompute-granularity") + 1] == "full"
    assert any("no module for" in note and "kept: query" in note for note in written.notes)
    assert data["not_expressed"] == [*written.notes]


def test_every_second_product_is_torchtitans_selective_mode(tmp_path: Path) -> None:
    policy = jax.checkpoint_policies.save_only_these_names(
        "query_proj", "value_proj", "context", "mlpwi_0"
    )
    found = planned(model(policy))
    settings = tomllib.loads(exported(found, "torchtitan", tmp_path))["activation_checkpoint"]
    assert settings == {"mode": "selective", "selective_ac_option": "op"}
    notes = found.export("torchtitan", tmp_path / "out").notes
    assert not any("every second" in note for note in notes)
    fewer = planned(model(jax.checkpoint_policies.save_only_these_names("query_proj")))
    settings = tomllib.loads(exported(fewer, "torchtitan", tmp_path))["activation_checkpoint"]
    assert settings["mode"] == "full"  # `selective` would keep what the plan does not


EXPERTS = 4


def with_experts(policy, *, grouped: bool):
    """Layers of experts alone: each token goes to the expert of its place or of its choice."""

    def products(x, w, sizes):
        if grouped:
            return jax.lax.ragged_dot(x, w, sizes)
        split = x.reshape(EXPERTS, -1, x.shape[-1])
        return jnp.einsum("etm,emf->etf", split, w).reshape(-1, w.shape[-1])

    def body(x, w):
        y = norm(x)
        chosen = jnp.argmax(y @ w["router"], axis=-1)
        order = jnp.argsort(chosen)
        sizes = jnp.bincount(chosen, length=EXPERTS).astype(jnp.int32)
        rows = y[order]
        gate = named(products(rows, w["gate"], sizes), "moe_mlpwi_0")
        up = named(products(rows, w["up"], sizes), "moe_mlpwi_1")
        out = named(products(jax.nn.silu(gate) * up, w["down"], sizes), "moe_mlpwo")
        return x + jnp.zeros_like(x).at[order].set(out), None

    def loss(params, batch):
        x = batch["x"].reshape(-1, WIDTH)
        x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, params)
        return jnp.mean((x - batch["y"].reshape(-1, WIDTH)) ** 2)

    return loss


def planned_experts(policy, recompute: str, *, grouped: bool):
    shapes = {"router": (WIDTH, EXPERTS), "gate": (EXPERTS, WIDTH, FFN),
              "up": (EXPERTS, WIDTH, FFN), "down": (EXPERTS, FFN, WIDTH)}  # fmt: skip
    params = {name: struct(LAYERS, *shape) for name, shape in shapes.items()}
    batch = {name: struct(ROWS, SEQ, WIDTH) for name in "xy"}
    return plan(
        with_experts(policy, grouped=grouped), params, batch, optimizer=optax.sgd(0.1),
        recompute=recompute, pipeline="off", cluster="2xh100", mesh=(2,), baselines=False,
        substitutions=False,
    )  # fmt: skip


def test_selective_recomputation_keeps_products_of_experts() -> None:
    everything = jax.checkpoint_policies.everything_saveable
    state = kept(planned_experts(everything, "selective", grouped=True).analysed)
    assert {**state.parts} == dict.fromkeys(("expert-gate", "expert-up", "expert-out"), KEPT)
    step, arguments, _ = moe.small()
    state = kept(plan(step, *arguments, cluster="2xh100", recompute="selective", mesh=(2,),
                      baselines=False, substitutions=False).analysed)  # fmt: skip
    assert {"expert-in", "expert-out"} <= state.those(KEPT)
    assert state.kind == SELECTIVE


@pytest.mark.parametrize("grouped", [True, False], ids=["sorted", "slots"])
@pytest.mark.parametrize("saved", [(), ("moe_mlpwi_0",)], ids=["nothing", "gate"])
def test_experts_are_parts_of_their_own(saved, grouped: bool, tmp_path: Path) -> None:
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    found = planned_experts(policy, "written", grouped=grouped)
    state = kept(found.analysed)
    want = {"expert-gate": KEPT if saved else AGAIN, "expert-up": AGAIN, "expert-out": KEPT}
    assert {**state.parts} == want
    words = json.loads(exported(found, "megatron", tmp_path))["arguments"]
    settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
    assert words[words.index("--recompute-granularity") + 1] == "full"
    if saved:
        assert settings["remat_policy"] == "custom"
        assert settings["moe_mlpwi_0"] == "device"
        assert settings["moe_mlpwi_1"] == "remat"
    else:
        assert state.kind == FULL
        assert settings["remat_policy"] == "full"


@pytest.mark.exhaustive
def test_what_the_planner_sends_to_the_host_is_in_the_settings(tmp_path: Path) -> None:
    """Of results as large as a product's, not of the statistics that are sent with them."""
    llama = Transformer(4, 4096, 32, 8, 14336, gated=True, vocab=4096, seq=8192, wide_weights=True)
    found = plan(
        llama.loss, llama.parameters(), llama.batch(8), cluster="8xh100", pipeline="off",
        optimizer=adam(copies=False), microbatches=1, mesh=(8,), recompute="search",
        memory_bytes=4_500_000_000, baselines=False, substitutions=False, padding=False,
    )  # fmt: skip
    away = kept(found.analysed).those(HOST)
    heads = 8192 * 128 * 2 * 4  # bytes of one head of all layers, one sequence on each device
    sizes = {"query": 32, "key": 8, "value": 8, "attention": 32, "attention-out": 32,
             "layer-input": 32, "mlp-gate": 112, "mlp-up": 112}  # fmt: skip
    assert away
    assert found.program.host_bytes == pytest.approx(
        heads * sum(sizes[part] for part in away), rel=0.02
    )
    settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
    names = {**NAMES, "layer-input": "decoder_layer_input"}
    assert {part for part, name in names.items() if settings.get(name) == "offload"} == away
