"""Meshwright's planner: `plan` a JAX function on a cluster, `load` a plan file."""

from typing import TYPE_CHECKING

from .common.import_guard import check_not_shadowed
from .common.lazy_surface import lazy_surface

check_not_shadowed()

if TYPE_CHECKING:
    from meshwright import *  # its stub file lists the names of both packages
else:
    __getattr__, __dir__, __all__ = lazy_surface()
