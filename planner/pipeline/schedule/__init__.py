"""Pipeline schedules: tables of tasks, checked and simulated.

`build(name, stages, microbatches)` makes one of `schedules()`; `simulate(schedule, costs, links)`
says when everything runs, what memory it takes and where time is lost; `read_own(path)` reads a
schedule of the user's.
"""

import lazy_loader

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
