"""The logger `meshwright`: what the planner does, for programs that ask for it."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("meshwright")
LOGGER.addHandler(logging.NullHandler())  # else Python itself would print warnings
