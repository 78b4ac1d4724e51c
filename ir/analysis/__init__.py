"""Analyses of programs: facts about a graph that hold on every mesh."""

import lazy_loader

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
