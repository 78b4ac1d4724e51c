from .run import Generated as Generated
from .run import catalogue_of as catalogue_of
from .run import generate as generate
from .sets import OP_SETS as OP_SETS
