"""The plan of a training step in stages."""

import lazy_loader

# Modules are in the stub file beside this one; each is loaded when it is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
