"""Holds a plan against what the compiler makes of it."""

from __future__ import annotations

from ...common.surface import public
from ..plan import Plan
from .program import Verification, verify_program
from .stages import verify_stages


@public
def verify(plan: Plan, *, compiler: str | None = None) -> Verification:
    """Compiles a plan and holds its collectives and memory against the prediction.

    Nothing is run or allocated, and the devices need not be there. Of a plan in stages every
    distinct stage is compiled.

    Args:
        plan: with its function: made by `plan`, or loaded and bound.
        compiler: `host`, XLA's for CPU devices; `gpu-aot`, XLA's for GPUs without one (needs
            `pip install 'meshwright[gpu-aot]'`); `gpu`, for those present. If None, the last of
            these that can compile for the plan's machine.

    Raises:
        PlanError: if the compiler is missing or unknown, does not know the plan's devices, or
            cannot compile the program; or no function is bound.
    """
    if not plan.file.in_stages:
        return verify_program(plan, compiler=compiler)
    return verify_stages(plan, compiler=compiler)
