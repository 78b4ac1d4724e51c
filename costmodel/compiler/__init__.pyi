from .buffer_lifetimes import Lifetimes as Lifetimes
from .buffer_lifetimes import lifetimes as lifetimes
from .fusion import Traffic as Traffic
from .fusion import analyse as analyse
from .fusion import is_fused as is_fused
from .fusion_bounds import bounded as bounded
