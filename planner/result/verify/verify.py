"""Compares a plan with its compiled program."""

from __future__ import annotations

from ...common.surface import public
from ..plan import Plan
from .program import Verification, verify_program
from .stages import verify_stages


@public
def verify(plan: Plan, *, compiler: str | None = None) -> Verification:
    """Compiles a plan and compares its collectives, memory and overlap with the prediction.

    Nothing is run or allocated, and the devices need not be present. In a plan in stages every
    distinct stage is compiled.

    Args:
        plan: a plan with a function: made by `plan`, or loaded and bound.
        compiler: `host` (XLA for CPU devices), `gpu-aot` (XLA for GPUs without a GPU, needs
            `pip install 'meshwright[gpu-aot]'`) or `gpu` (XLA for the GPUs present). If None, the
            last of these that can compile for the plan's cluster.

    Raises:
        PlanError: if the compiler is missing or unknown, does not know the plan's devices, or
            cannot compile the program; or no function is bound.
    """
    if not plan.file.in_stages:
        return verify_program(plan, compiler=compiler)
    return verify_stages(plan, compiler=compiler)
