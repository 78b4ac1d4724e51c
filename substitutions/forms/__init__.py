"""All programs that rules prove equal to one, with known sizes."""

from .egraph import Form as Form
from .egraph import Forms as Forms
from .program import of_term as of_term
from .rewrite import Saturated as Saturated
from .rewrite import rewrite_rules as rewrite_rules
from .rewrite import saturate as saturate
from .shapes import Params as Params
from .shapes import Value as Value
