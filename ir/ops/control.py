"""Ops with bodies, and ops that only JAX can run: the planner does not look at their factors."""

from __future__ import annotations

from ..opdef import OpDef
from .build import no_flops, on_one_device, opaque

# The work of an op with bodies is in the bodies, which are counted themselves.
RECORDS = (
    *(OpDef(name, opaque, "control", no_flops) for name in ("cond", "remat", "scan", "while")),
    *(OpDef(name, opaque, "opaque") for name in ("platform_index", "pure_callback")),
    *(
        OpDef(name, on_one_device, "effect", no_flops)
        for name in ("debug_callback", "debug_print", "io_callback")
    ),
)
