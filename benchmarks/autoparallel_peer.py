# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""AutoParallel on Llama 3, run by a Python that has PyTorch; `benchmarks.autoparallel` starts it.

    PYTHONPATH=CHECKOUT PYTHON -P benchmarks/autoparallel_peer.py '{"hidden": 4096, ...}'

The settings are those of the checkout's examples/example_llama3.py: f32 parameters computed with in
bf16, recomputation by op, identical layers folded, batch and vocabulary split at the borders, one
share of the parameters on every device. A build of PyTorch for CPUs knows no CUDA tensors. So the
mesh is one of CPUs, its devices are priced as H100s, as in the tests of the checkout, and
attention calls the flash kernel that F.scaled_dot_product_attention would choose on a GPU; the CPU
kernel has no sharding rule there and would be replicated.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pulp
import torch
from autoparallel._testing.models import llama3
from autoparallel.api import AutoParallel
from autoparallel.cost_models.nccl_cost_model import h100_topo_config
from torch._functorch._aot_autograd.fx_utils import (
    get_named_param_nodes,
    get_plain_input_and_grad_nodes,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

HOST = 8  # devices of an H100 host
EVERY_S = 0.25  # between two samples of the memory of this process and of the solver that it starts
flash = torch.ops.aten._scaled_dot_product_flash_attention


def model(size):
    """The checkout's own Llama on no device."""
    arguments = llama3.TransformerModelArgs(
        dim=size["hidden"], n_layers=size["layers"], n_heads=size["heads"],
        n_kv_heads=size["kv_heads"], vocab_size=size["vocab"], max_seq_len=size["seq"],
        rope_theta=500000, multiple_of=size["ffn"],  # 8/3 of hidden, rounded up to ffn itself
    )  # fmt: skip
    with torch.device("meta"):
        made = llama3.Transformer(arguments)
    assert made.layers["0"].feed_forward.w1.out_features == size["ffn"]
    llama3.apply_ac(made, mode="selective", selective_ac_option="op")
    return made


def dims(spec):
    """For every mesh axis the dimension that it splits, or None."""
    return [p.dim if p.is_shard() else None for p in spec.placements]


def text(spec):
    first = spec[0] if isinstance(spec, (list, tuple)) else spec
    return ",".join(
        f"S{p.dim}" if p.is_shard() else "P" if p.is_partial() else "R" for p in first.placements
    )


def products(graph, solution):
    """How often matrix products and attention are sharded which way: inputs -> result."""
    found = Counter()
    for node in graph.nodes:
        if "einsum" in str(node.target) or "dot_product" in str(node.target):
            chosen = solution[node]
            name = "einsum" if "einsum" in str(node.target) else "attention"
            inputs = " ".join(text(spec) for spec in chosen.input_specs[:2])
            found[f"{name} {inputs} -> {text(chosen.output_specs)}"] += 1
    return dict(found.most_common())


def resident_bytes(process):
    """Memory of a process now; none if it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    held = [row.split() for row in text.splitlines() if row.startswith("VmRSS:")]
    return int(held[0][1]) * 1024 if held else 0


def watch(peaks):
    """Keeps the most that this process held, its solver, and both at once; Linux only.

    The maximum that getrusage gives for children is no less than what this process held when it
    started them.
    """
    while True:
        own = resident_bytes("self")
        tasks = Path("/proc/self/task").glob("*/children")
        children = [pid for task in tasks for pid in task.read_text(encoding="utf-8").split()]
        solver = sum(resident_bytes(pid) for pid in children)
        for name, now in (("own", own), ("solver", solver), ("both", own + solver)):
            peaks[name] = max(peaks[name], now)
        time.sleep(EVERY_S)


def cpu_s(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def run(size):
    """Builds and solves; seconds, memory, objective and the plan's borders."""
    outer, inner = size["mesh"]
    devices = outer * inner
    torch.cpu.get_device_name = lambda _device=None: "H100"
    llama3.ScaledDotProductAttention.forward = lambda _self, q, k, v: flash(q, k, v, 0.0, True)[0]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    mesh = init_device_mesh("cpu", (outer, inner), mesh_dim_names=("dp", "tp"))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    topology = h100_topo_config(num_nodes=devices // HOST, gpus_per_node=HOST)

    def tokens():
        return torch.randint(0, size["vocab"], (size["batch"], size["seq"]))

    peaks = Counter()
    threading.Thread(target=watch, args=(peaks,), daemon=True).start()
    start = time.monotonic()
    before = cpu_s(resource.RUSAGE_SELF)
    with AutoParallel(model(size), tokens, mesh, precision, cost_model=topology) as search:
        built = time.monotonic()
        built_cpu_s = cpu_s(resource.RUSAGE_SELF) - before
        optimizer = search.sharding_optimizer
        search.add_parameter_memory_constraint(low=None, high=None)
        search.add_input_constraints([(Shard(0), Replicate())])
        search.add_output_constraints([(Shard(0), Shard(2))])
        solution = search.optimize_placement()
        solved = time.monotonic()
        graph = search.gm.graph
        unfolded = optimizer._compute_solution_cost(optimizer._to_concrete_solution(solution))
        inputs = get_plain_input_and_grad_nodes(graph)
        return {
            "torch": torch.__version__, "pulp": pulp.__version__,
            "build_s": built - start, "solve_s": solved - built,
            "build_cpu_s": built_cpu_s, "cpu_s": cpu_s(resource.RUSAGE_SELF),
            "solver_cpu_s": cpu_s(resource.RUSAGE_CHILDREN), "peak_gb": peaks["both"] / 1e9,
            "own_peak_gb": peaks["own"] / 1e9, "solver_peak_gb": peaks["solver"] / 1e9,
            "variables": len(optimizer.pulp_variables),
            "constraints": len(optimizer.prob.constraints),
            "status": pulp.LpStatus[optimizer.prob.status],
            "objective_us": pulp.value(optimizer.prob.objective), "unfolded_us": unfolded,
            "parameters": {
                name: dims(solution[node].output_specs)
                for name, node in get_named_param_nodes(graph).items()
            },
            "inputs": [dims(solution[node].output_specs) for node, _ in inputs.values()],
            "products": products(graph, solution),
        }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
