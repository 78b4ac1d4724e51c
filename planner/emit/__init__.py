"""Plans as programs that JAX runs; see docs/design/0002-manual-emission.md."""

from .hlo import HloCollective as HloCollective
from .hlo import count_collectives as count_collectives
from .jit import CompiledPlan as CompiledPlan
from .jit import build_mesh as build_mesh
from .jit import compile_plan as compile_plan
from .local import LocalProgram as LocalProgram
from .local import local_program as local_program
from .local_op import partition_spec as partition_spec
