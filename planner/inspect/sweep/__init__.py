"""A sweep's file, what it says about the number of devices, and its page."""

import lazy_loader

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
