"""Analyses of programs: what is true of a graph on every mesh."""

from .colour_refinement import Incidence as Incidence
from .colour_refinement import refine as refine
from .decisions import Decisions as Decisions
from .decisions import ValueKey as ValueKey
from .dimension_classes import Classes as Classes
from .dimension_classes import Kinds as Kinds
from .effects import has_effects as has_effects
from .effects import is_effect as is_effect
from .factor_specs import Groups as Groups
from .factor_specs import Specs as Specs
from .flat_program import ASSUMED_ITERATIONS as ASSUMED_ITERATIONS
from .flat_program import REGIONS as REGIONS
from .flat_program import FlatOp as FlatOp
from .flat_program import FlatProgram as FlatProgram
from .flat_program import Link as Link
from .flat_program import Place as Place
from .flat_program import flat_type as flat_type
from .flat_program import flatten as flatten
from .flat_program import is_float as is_float
from .flat_program import operand_types as operand_types
from .union_find import find as find
from .value_uses import accumulators as accumulators
from .value_uses import any_partial as any_partial
from .value_uses import may_be_partial as may_be_partial
from .value_uses import uses as uses
