"""Meshwright's planner: `plan` a JAX function on a cluster, `load` a plan file."""

import lazy_loader

from .common.import_guard import check_not_shadowed as check_not_shadowed

check_not_shadowed()

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
