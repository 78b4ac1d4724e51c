"""What a plan keeps in memory where XLA's CPU compiler compiles it."""

from .memory import host_memory as host_memory
from .memory import is_host as is_host
