"""The training step of a loss and an optimizer, and its micro-batches."""

import lazy_loader

# Modules are in the stub file beside this one; each is loaded when it is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
