from .flexflow import read_flexflow as read_flexflow
from .read import read_each as read_each
from .read import read_rules as read_rules
from .taso import read_taso as read_taso
from .tensat import read_tensat as read_tensat
