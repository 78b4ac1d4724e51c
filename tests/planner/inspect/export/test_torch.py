# pyright: basic, reportMissingImports=false
"""`torch` on four gloo processes: an equivalent module, the same loss and gradients.

PyTorch is no dependency: `pip install torch==2.13.0` brings it, and these tests with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.planner.inspect.export import plans
from tests.planner.inspect.export.fresh import BLOCK
from tests.planner.programs import filled

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
    pytest.mark.distributed,
    pytest.mark.slow,
]

PROGRAM = """
import json
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
import plan as exported

dist.init_process_group("gloo")
torch.set_num_threads(1)
plan = exported.load("plan.json")
mesh = exported.device_mesh(plan, "cpu")
held = {k: torch.from_numpy(v) for k, v in np.load("arguments.npz").items()}

class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32, bias=False)
        self.down = torch.nn.Linear(32, 16, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

names = {"up.weight": ("up", (1, 0)), "down.weight": ("down", (1, 0))}

def fresh():
    module = Mlp()
    with torch.no_grad():
        module.up.weight.copy_(held["up"].T)
        module.down.weight.copy_(held["down"].T)
    return module

def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x

def grads(module):
    return {n: whole(p.grad).detach().numpy() for n, p in module.named_parameters()}

module = exported.distribute(fresh(), plan, mesh, names)
x = exported.distribute_argument(held["x"], plan, mesh, "batch/x")
y = exported.distribute_argument(held["y"], plan, mesh, "batch/y")
loss = ((module(x) - y) ** 2).mean()
loss.backward()
found = {"loss": float(whole(loss))}
found["local"] = [list(p.to_local().shape) for p in module.parameters()]
slopes = grads(module)

styles = exported.parallelize_plan(plan, plan["mesh"][0][0], names)
found["styles"] = {k: type(v).__name__ for k, v in styles.items()}
if styles and len(plan["mesh"]) == 1:
    module = parallelize_module(fresh(), mesh, styles)
    loss = ((module(held["x"]) - held["y"]) ** 2).mean()
    loss.backward()
    found["styled_loss"] = float(whole(loss))
    for name, slope in grads(module).items():
        np.testing.assert_allclose(slope, slopes[name], rtol=1e-4, atol=1e-6)
if dist.get_rank() == 0:
    np.savez("grads.npz", **slopes)
    json.dump(found, open("found.json", "w"))
dist.barrier()
dist.destroy_process_group()
"""


def run_four(folder: Path) -> dict:
    script = folder / "program.py"
    script.write_text(BLOCK + PROGRAM, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, str(script)], cwd=folder, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(4)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * 4, said[0][-3000:]
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


LAYOUTS = {
    "tensor-parallel": plans.tensor_parallel,
    "fsdp": lambda: plans.pinned("[x,-]", "[x,-]", "[x,-]", mesh=(4,)),
    "both": lambda: plans.pinned("[-,y]", "[y,-]", "[x,-]", mesh=(2, 2)),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_four_processes_compute_the_same(kind: str, tmp_path: Path) -> None:
    found = LAYOUTS[kind]()
    found.export("torch", tmp_path / "plan.json")
    params, batch = filled(plans.MLP), filled(plans.PAIRS)
    np.savez(tmp_path / "arguments.npz", **params, **batch)
    said = run_four(tmp_path)
    loss, slopes = jax.value_and_grad(plans.mlp_loss)(params, batch)
    assert said["loss"] == pytest.approx(float(loss), rel=1e-5)
    held = np.load(tmp_path / "grads.npz")
    for name in ("up", "down"):
        np.testing.assert_allclose(held[f"{name}.weight"].T, slopes[name], rtol=1e-4, atol=1e-6)
    local = {"tensor-parallel": [[8, 16], [16, 8]], "fsdp": [[32, 4], [16, 8]],
             "both": [[16, 16], [16, 16]]}  # fmt: skip
    assert said["local"] == local[kind]
    if kind == "tensor-parallel":
        assert said["styles"] == {"up": "ColwiseParallel", "down": "RowwiseParallel"}
        assert said["styled_loss"] == pytest.approx(float(loss), rel=1e-5)
