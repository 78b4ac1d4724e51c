"""Meshwright: `plan` a JAX function on a cluster, `load` a plan file."""

from planner.common.lazy_surface import lazy_surface

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_surface()
