# pyright: basic
"""Settings of other frameworks, read off layouts whose settings everybody knows."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from pathlib import Path

import optax
import pytest
import yaml

from planner import plan
from planner.inspect.export.degrees import degrees
from tests.planner.inspect.export import plans
from tests.planner.programs import slow_machine


def exported(found, name: str, folder: Path) -> str:
    found.export(name, folder / "out")
    return (folder / "out").read_text(encoding="utf-8")


def by_hand(name: str, mesh: tuple[int, ...] = (4,)):
    """A hand-written layout of the planner's own list, on four devices."""
    return plan(
        plans.mlp_loss, plans.MLP, plans.PAIRS, cluster=slow_machine(math.prod(mesh)), mesh=mesh,
        baseline=name,
        optimizer=optax.adam(1e-2),
    )  # fmt: skip


@pytest.fixture(scope="module", params=["data-parallel", "zero-1", "zero-2", "fsdp"])
def layout(request):
    return request.param, by_hand(request.param)


STAGES = {"data-parallel": {0}, "zero-1": {1, 2}, "zero-2": {2}, "fsdp": {3}}


def test_known_layouts_have_their_stage(layout, tmp_path: Path) -> None:
    name, found = layout
    config = json.loads(exported(found, "deepspeed", tmp_path))
    # one step without micro-batches scatters gradients under ZeRO-1 too
    assert config["zero_optimization"]["stage"] in STAGES[name]
    assert "tensor_parallel" not in config
    assert config["train_batch_size"] == 8
    assert (
        config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 4
        == config["train_batch_size"]
    )


def test_known_layouts_in_maxtext(layout, tmp_path: Path) -> None:
    name, found = layout
    settings = yaml.safe_load(exported(found, "maxtext", tmp_path))
    axis = "fsdp" if name == "fsdp" else "data"
    assert settings[f"ici_{axis}_parallelism"] == 4
    product = 1
    for key, value in settings.items():
        if key.startswith(("ici_", "dcn_")):
            product *= value
    assert product == 4
    assert settings["per_device_batch_size"] * 4 * settings["gradient_accumulation_steps"] == 8


def test_known_layouts_in_torchtitan(layout, tmp_path: Path) -> None:
    name, found = layout
    settings = tomllib.loads(exported(found, "torchtitan", tmp_path))
    degrees = settings["parallelism"]
    split = "shard" if name == "fsdp" else "replicate"
    assert degrees[f"data_parallel_{split}_degree"] == 4
    assert degrees.pop("expert_parallel_degree") == 1
    assert math.prod(degrees.values()) == 4  # as torchtitan checks
    training = settings["training"]
    assert training["global_batch_size"] == 8
    assert 8 % (4 * training["local_batch_size"]) == 0
    assert settings["activation_checkpoint"]["mode"] == "none"


def megatron_parser() -> argparse.ArgumentParser:
    """The arguments of Megatron-LM that are used, as its argparse declares them."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in (
        "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
        "expert-model-parallel-size", "micro-batch-size", "global-batch-size",
        "recompute-num-layers",
    ):  # fmt: skip
        parser.add_argument(f"--{flag}", type=int)
    for flag in (
        "sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "bf16", "fp16",
        "no-gradient-accumulation-fusion",
    ):  # fmt: skip
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument(
        "--data-parallel-sharding-strategy",
        choices=["no_shard", "optim", "optim_grads", "optim_grads_params"],
    )
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    parser.add_argument("--ckpt-format", choices=["torch", "torch_dist", "zarr", "fsdp_dtensor"])
    return parser


@pytest.mark.parametrize("kind", plans.PLANS)
def test_megatron_takes_its_arguments(kind: str, tmp_path: Path) -> None:
    found = plans.PLANS[kind]()
    data = json.loads(exported(found, "megatron", tmp_path))
    args = megatron_parser().parse_args(data["arguments"])
    model = args.tensor_model_parallel_size * args.pipeline_model_parallel_size
    model *= args.context_parallel_size
    assert data["world_size"] % model == 0
    replicas = data["world_size"] // model
    assert args.global_batch_size % args.micro_batch_size == 0 or "batch" in str(data)
    if kind == "tensor-parallel":
        assert (args.tensor_model_parallel_size, replicas) == (4, 1)
        assert not args.use_megatron_fsdp


def test_megatron_of_fsdp(tmp_path: Path) -> None:
    data = json.loads(exported(by_hand("fsdp"), "megatron", tmp_path))
    args = megatron_parser().parse_args(data["arguments"])
    assert args.tensor_model_parallel_size == 1
    assert args.data_parallel_sharding_strategy == "optim_grads_params"
    assert (args.micro_batch_size, args.global_batch_size) == (2, 8)


@pytest.mark.parametrize("kind", plans.PLANS)
def test_megatron_bridge_says_what_megatron_does(kind: str, tmp_path: Path) -> None:
    found = plans.PLANS[kind]()
    args = megatron_parser().parse_args(
        json.loads(exported(found, "megatron", tmp_path))["arguments"]
    )
    config = yaml.safe_load(exported(found, "megatron-bridge", tmp_path))
    for field, value in {**config["model"], **config["train"]}.items():
        if field != "gradient_accumulation_fusion":
            assert getattr(args, field) == value, field
    assert config["ddp"]["use_distributed_optimizer"] == args.use_distributed_optimizer
    assert config["optimizer"]["use_distributed_optimizer"] == args.use_distributed_optimizer
    assert config.get("mixed_precision") == ("bf16_mixed" if args.bf16 else None)


def test_megatron_bridge_of_fsdp(tmp_path: Path) -> None:
    config = yaml.safe_load(exported(by_hand("fsdp"), "megatron-bridge", tmp_path))
    assert config["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
    assert config["ddp"]["use_megatron_fsdp"]
    assert config["dist"]["use_megatron_fsdp"]
    assert config["checkpoint"]["ckpt_format"] == "fsdp_dtensor"
    assert config["model"]["gradient_accumulation_fusion"] is False
    assert config["train"] == {"micro_batch_size": 2, "global_batch_size": 8}


def test_hybrids_are_told_apart() -> None:
    found = by_hand("megatron", mesh=(2, 4))
    d = degrees(found.analysed)
    assert sorted(d.meaning.values()) == ["data", "tensor"]
    assert d.replicas * d.degree("tensor") == 8
    assert d.micro_batch * d.replicas == 8


def test_mixtures_are_said() -> None:
    found = plans.pinned("[-,x]", "[-,-]", "[-,-]", mesh=(4,))
    d = degrees(found.analysed)
    assert any("in another way" in note for note in d.notes) or set(d.meaning.values()) <= {
        "tensor"
    }


def test_micro_batches_and_loops(tmp_path: Path) -> None:
    config = json.loads(exported(plans.layered(), "deepspeed", tmp_path))
    assert config["gradient_accumulation_steps"] == 2
