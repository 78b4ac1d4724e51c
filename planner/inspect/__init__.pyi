from . import at_a_glance as at_a_glance
from . import export as export
from . import perfetto as perfetto
from . import report as report
from . import sweep as sweep
from . import what_if as what_if
