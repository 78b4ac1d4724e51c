"""Modules of Flax NNX and Equinox as arguments and results of a parallelized function."""

from .opened import Opened as Opened
from .opened import opened as opened
