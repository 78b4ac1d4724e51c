"""Plans as programs that JAX runs; see docs/design/0002-manual-emission.md."""

import lazy_loader

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
