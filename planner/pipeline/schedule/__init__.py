"""Pipeline schedules: tables of tasks, checked and simulated.

`build(name, stages, microbatches)` makes one of `schedules()`; `simulate(schedule, costs, links)`
returns its timeline with memory and idle time; `read_own(path)` reads a user's schedule.
"""

import lazy_loader

# Names are in the stub file beside this one; each module is loaded when one of its names is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
