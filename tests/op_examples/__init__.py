# pyright: basic
"""Small calls that together trace to every op that has a record."""

from .attention import attentions
from .elementwise import elementwise
from .example import INTS as INTS
from .example import Example as Example
from .example import X as X
from .example import Y as Y
from .example import batch_spd as batch_spd
from .example import indices as indices
from .example import normal as normal
from .others import others
from .reductions import reductions


def computing() -> list[Example]:
    """Examples of all ops that are not in `helpers_layouts`."""
    return [*elementwise(), *reductions(), *others(), *attentions()]
